"""The named tuples that operators return are created on demand; `type(result)` is the class."""
