"""Tiny tables."""

from lightning_fl.data.partition import IID
from lightning_fl.data.tables.module import TableData

OWN = "age,colour,site,sick\n30,red,a,no\n40,,a,yes\n?,blue,b,no\n\n60,red,b,yes\n50,red,b,no\n"


def ready(**arguments):
    """A data module after preparation and set-up, of one client unless given otherwise."""
    data = TableData(**({"partitioner": IID(num_clients=1), "split_seed": 0} | arguments))
    data.prepare_data()
    data.setup("fit")
    return data
