"""Model files under a deprecated name (`torch.utils.model_zoo`)."""

from ..hub import load_state_dict_from_url as load_url  # noqa: F401
from ..hub import download_url_to_file as _download_url_to_file  # noqa: F401
from ..hub import tqdm  # noqa: F401
