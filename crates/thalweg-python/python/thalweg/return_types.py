"""The named tuples that operators return are made by their names; each result tells its own class."""
