"""Short names of dtypes, as in PyTorch's logs."""

from .. import _core

dtype_abbrs = {
    dtype: dtype._name.replace("float", "f").replace("int", "i").replace("ui", "u").replace("complex", "c").replace("bool", "b8").replace("_", "")
    for dtype in _core._dtypes()}
