"""Exported programs, under the name of PyTorch's module (`torch.export.exported_program`)."""

from ._program import ExportedProgram, ModuleCallSignature  # noqa: F401
from .graph_signature import ConstantArgument, ExportGraphSignature, InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument  # noqa: F401
