"""Federated data: the contract, ready data sets, partitioners. Loaded on first use."""

from typing import TYPE_CHECKING

from lightning_fl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from lightning_fl.data.division import ColumnDivision as ColumnDivision
    from lightning_fl.data.division import Division as Division
    from lightning_fl.data.division import GroupDivision as GroupDivision
    from lightning_fl.data.division import HashDivision as HashDivision
    from lightning_fl.data.division import ListDivision as ListDivision
    from lightning_fl.data.division import OrderDivision as OrderDivision
    from lightning_fl.data.division import RandomDivision as RandomDivision
    from lightning_fl.data.division import ScaffoldDivision as ScaffoldDivision
    from lightning_fl.data.hugging_face import HFDataset as HFDataset
    from lightning_fl.data.images.domains import ImageDomains as ImageDomains
    from lightning_fl.data.images.module import ImageData as ImageData
    from lightning_fl.data.images.silos import ImageFolders as ImageFolders
    from lightning_fl.data.module import FederatedDataModule as FederatedDataModule
    from lightning_fl.data.molecules.card_modules import DrugOOD as DrugOOD
    from lightning_fl.data.molecules.card_modules import MoleculeNet as MoleculeNet
    from lightning_fl.data.molecules.laboratories import PrivateTargets as PrivateTargets
    from lightning_fl.data.molecules.module import MoleculeCSV as MoleculeCSV
    from lightning_fl.data.partition import IID as IID
    from lightning_fl.data.partition import Dirichlet as Dirichlet
    from lightning_fl.data.partition import FedCollabLabelShift as FedCollabLabelShift
    from lightning_fl.data.partition import FromFile as FromFile
    from lightning_fl.data.partition import FromFlower as FromFlower
    from lightning_fl.data.partition import GroupBy as GroupBy
    from lightning_fl.data.partition import LabelTypes as LabelTypes
    from lightning_fl.data.partition import Mixture as Mixture
    from lightning_fl.data.partition import OneClassShards as OneClassShards
    from lightning_fl.data.partition import Partitioner as Partitioner
    from lightning_fl.data.partition import Pathological as Pathological
    from lightning_fl.data.partition import Quantity as Quantity
    from lightning_fl.data.partition import Scaffold as Scaffold
    from lightning_fl.data.partition import ScaffoldLDA as ScaffoldLDA
    from lightning_fl.data.partition import Sizes as Sizes
    from lightning_fl.data.partitioned import Partitioned as Partitioned
    from lightning_fl.data.shifts import FedCollabConceptShift as FedCollabConceptShift
    from lightning_fl.data.shifts import Inversion as Inversion
    from lightning_fl.data.shifts import LabelPermutation as LabelPermutation
    from lightning_fl.data.shifts import Rotation as Rotation
    from lightning_fl.data.shifts import Shift as Shift
    from lightning_fl.data.silos import Silos as Silos
    from lightning_fl.data.synthetic.boundary_noise import BoundaryNoise as BoundaryNoise
    from lightning_fl.data.synthetic.mixture import SyntheticMixture as SyntheticMixture
    from lightning_fl.data.tables.module import TableData as TableData
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
