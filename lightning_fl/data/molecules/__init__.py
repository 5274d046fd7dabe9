"""Molecules: tables of SMILES, their graphs, ready data sets."""
