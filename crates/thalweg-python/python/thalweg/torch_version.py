"""The release of PyTorch whose names this package has (`torch.torch_version`)."""

from ._alias import VERSION, TorchVersion

__all__ = ["TorchVersion"]
__version__ = TorchVersion(VERSION)
