"""Modules whose products are divided among ranks (`torch.distributed.tensor.parallel`).

A style divides the parameters of a layer, and says how its input comes and its output goes: in one piece on each rank
(`Replicate`), or in parts of a dimension (`Shard`). Between layers there are plain tensors.
"""

import fnmatch

from .... import _core
from ...._left_out import attributes
from ....nn.layers import Embedding, Linear
from ..._functional_collectives import Change, gathered, reduced, scattered
from ..._placements import Replicate, Shard
from .. import DTensor, ShardedParameter
from .._placing import padded, part_of

__all__ = ["ColwiseParallel", "ParallelStyle", "PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput", "RowwiseParallel", "SequenceParallel",
           "parallelize_module"]
Tensor = _core.Tensor


def _same(tensor):
    return tensor.view_as(tensor)


def _part(tensor, dim, group):
    return part_of(tensor, dim, group.rank(), group.size()).contiguous()


def _entire(tensor, placement, group):
    """Returns the entire tensor, for a layer of which each rank computes a part: gradients are added up."""
    if isinstance(placement, Replicate):
        return Change.apply(tensor, _same, lambda gradient: reduced(gradient, "sum", group))
    dim = placement.dim % tensor.dim()
    return Change.apply(tensor, lambda value: gathered(value, dim, group), lambda gradient: scattered(gradient, "sum", dim, group))


def _summed(tensor, placement, group):
    """Returns the sum of the terms that ranks have computed, or a rank's part of it."""
    if isinstance(placement, Replicate):
        return Change.apply(tensor, lambda value: reduced(value, "sum", group), _same)
    dim = placement.dim % tensor.dim()
    return Change.apply(tensor, lambda value: scattered(value, "sum", dim, group), lambda gradient: gathered(gradient, dim, group))


def _placed(tensor, source, target, group, extent=None):
    """Returns a rank's part of a tensor that all ranks compute alike, in another placement. The extent is that of the dimension that the ranks
    have divided, if their parts may differ in size."""
    if isinstance(tensor, DTensor):
        return tensor.redistribute(placements=[target]).to_local()
    source, target = (Shard(one.dim % tensor.dim()) if isinstance(one, Shard) else one for one in (source, target))
    if source == target or not isinstance(tensor, Tensor):
        return tensor
    if isinstance(source, Shard):
        tensor = Change.apply(tensor, lambda value: _together(value, source.dim, group, extent), lambda gradient: _part(gradient, source.dim, group))
    if isinstance(target, Shard):
        tensor = Change.apply(tensor, lambda value: _part(value, target.dim, group), lambda gradient: gathered(gradient, target.dim, group))
    return tensor


def _together(tensor, dim, group, extent):
    """Returns the parts of all ranks, one after another."""
    if extent is None or extent % group.size() == 0:
        return gathered(tensor, dim, group)
    return gathered(padded(tensor, dim, -(-extent // group.size())), dim, group).narrow(dim, 0, extent)


def _local(value, layout):
    """Returns this rank's part of an input: a divided tensor is placed as the layer's inputs are, and a plain tensor is placed so already."""
    return value.redistribute(placements=[layout]).to_local() if isinstance(value, DTensor) else value


def _shown(output, layout, mesh, is_local):
    """Returns the output of a layer: this rank's part, or the divided tensor."""
    return output if is_local else DTensor.from_local(output, mesh, [layout])


def _divide(module, name, dim, mesh):
    """Replaces a parameter by this rank's part of a dimension, or by the one of the first rank."""
    from ... import broadcast
    parameter = module._parameters.get(name)
    if parameter is None:
        return
    group = mesh.get_group()
    whole = parameter.detach().clone()
    broadcast(whole, group=group, group_src=0)
    part = whole if dim is None else part_of(whole, dim, group.rank(), group.size()).clone()
    module._parameters[name] = ShardedParameter(part, mesh, [Replicate() if dim is None else Shard(dim)], parameter.shape, parameter.requires_grad)


def _compute_with_parts(module):
    """Makes a module compute with this rank's parts of its parameters."""
    forward = module.forward

    def computed(*args, **kwargs):
        own = dict(module._parameters)
        module._parameters.update({name: one._local for name, one in own.items() if isinstance(one, ShardedParameter)})
        try:
            return forward(*args, **kwargs)
        finally:
            module._parameters.update(own)
    module.forward = computed


class ParallelStyle:
    """The base class of styles."""

    src_data_rank = 0

    def _apply(self, module, device_mesh):
        raise NotImplementedError


class ColwiseParallel(ParallelStyle):
    """Divides the outputs of `Linear`, or the features of `Embedding`."""

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True):
        self.input_layout, self.output_layout, self.is_local = input_layouts or Replicate(), output_layouts or Shard(-1), use_local_output

    def _apply(self, module, device_mesh):
        group = device_mesh.get_group()
        if isinstance(module, Linear):
            extent = module.weight.shape[0]
            _divide(module, "weight", 0, device_mesh)
            _divide(module, "bias", 0, device_mesh)
            module.register_forward_pre_hook(lambda part, inputs: (_entire(_local(inputs[0], self.input_layout), self.input_layout, group), *inputs[1:]))
        elif isinstance(module, Embedding):
            extent = module.weight.shape[1]
            _divide(module, "weight", 1, device_mesh)
        else:
            raise NotImplementedError("ColwiseParallel currently only support nn.Linear and nn.Embedding!")
        _compute_with_parts(module)
        module.register_forward_hook(lambda part, inputs, output: _shown(
            _placed(output, Shard(-1), self.output_layout, group, extent), self.output_layout, device_mesh, self.is_local))
        return module


class RowwiseParallel(ParallelStyle):
    """Divides the inputs of `Linear`, or the rows of `Embedding`."""

    def __init__(self, *, input_layouts=None, output_layouts=None, use_local_output=True):
        self.input_layout, self.output_layout, self.is_local = input_layouts or Shard(-1), output_layouts or Replicate(), use_local_output

    def _apply(self, module, device_mesh):
        group = device_mesh.get_group()
        if isinstance(module, Linear):
            _divide(module, "weight", 1, device_mesh)
            _divide(module, "bias", None, device_mesh)

            def forward(input):
                input = _placed(_local(input, self.input_layout), self.input_layout, Shard(-1), group)
                output = _summed(_core.linear(input, module.weight.as_subclass(Tensor)), self.output_layout, group)
                if module.bias is None:
                    return output
                bias = module.bias.as_subclass(Tensor)
                return output + (_entire(bias, Replicate(), group) if isinstance(self.output_layout, Shard) else bias)
        elif isinstance(module, Embedding):
            rows = module.weight.shape[0]
            _divide(module, "weight", 0, device_mesh)
            first = -(-rows // group.size()) * group.rank()

            def forward(input):
                own = _local(input, Replicate()) - first
                weight = module.weight.as_subclass(Tensor)
                is_here = (own >= 0) & (own < weight.shape[0])
                output = _core.embedding(weight, own.clamp(0, max(weight.shape[0] - 1, 0)))
                return _summed(output * is_here.unsqueeze(-1).to(output.dtype), self.output_layout, group)
        else:
            raise NotImplementedError("RowwiseParallel currently only support nn.Linear and nn.Embedding!")
        module.forward = forward if self.is_local else lambda input: _shown(forward(input), self.output_layout, device_mesh, False)
        return module


class SequenceParallel(ParallelStyle):
    """Computes a layer without products (`LayerNorm`, `Dropout`, `RMSNorm`) for each rank's part of the sequence."""

    def __init__(self, *, sequence_dim=1, use_local_output=False):
        self.dim = sequence_dim

    def _apply(self, module, device_mesh):
        group = device_mesh.get_group()
        for name in list(module._parameters):
            _divide(module, name, None, device_mesh)
            parameter = module._parameters[name]
            if parameter is not None and parameter.requires_grad:
                # Each rank has seen its part of the sequence alone.
                parameter.sum_over(group)
        _compute_with_parts(module)
        module.register_forward_pre_hook(lambda part, inputs: (_local(inputs[0], Shard(self.dim)), *inputs[1:]))
        return module


class PrepareModuleInput(ParallelStyle):
    """Places the inputs of a module."""

    def __init__(self, *, input_layouts=None, desired_input_layouts=None, input_kwarg_layouts=None, desired_input_kwarg_layouts=None, use_local_output=False):
        def listed(value):
            return [value] if value is None or not isinstance(value, (tuple, list)) else list(value)
        self.layouts, self.wanted = listed(input_layouts), listed(desired_input_layouts)
        self.named, self.named_wanted = input_kwarg_layouts or {}, desired_input_kwarg_layouts or {}
        self.is_local = use_local_output

    def _apply(self, module, device_mesh):
        group = device_mesh.get_group()

        def placed(value, source, target):
            if source is None or not isinstance(value, Tensor):
                return value
            return _shown(_placed(value, source, target, group), target, device_mesh, self.is_local)

        def place(part, args, kwargs):
            pairs = [*zip(self.layouts, self.wanted), *[(None, None)] * len(args)]
            args = tuple(placed(value, source, target) for value, (source, target) in zip(args, pairs))
            return args, {name: placed(value, self.named.get(name), self.named_wanted.get(name)) for name, value in kwargs.items()}
        module.register_forward_pre_hook(place, with_kwargs=True)
        return module


class PrepareModuleOutput(ParallelStyle):
    """Places the outputs of a module."""

    def __init__(self, *, output_layouts, desired_output_layouts, use_local_output=True):
        self.layouts = output_layouts if isinstance(output_layouts, (tuple, list)) else [output_layouts]
        self.wanted = desired_output_layouts if isinstance(desired_output_layouts, (tuple, list)) else [desired_output_layouts]

    def _apply(self, module, device_mesh):
        group = device_mesh.get_group()

        def place(part, inputs, outputs):
            several = outputs if isinstance(outputs, (tuple, list)) else [outputs]
            placed = [value if source is None else _placed(value, source, target, group) for value, source, target in zip(several, self.layouts, self.wanted)]
            return tuple(placed) if isinstance(outputs, (tuple, list)) else placed[0]
        module.register_forward_hook(place)
        return module


class PrepareModuleInputOutput(ParallelStyle):
    """Places the inputs and the outputs of a module."""

    def __init__(self, *, output_layouts, desired_output_layouts, use_local_output=True, **inputs):
        inputs = {"use_local_output" if name == "use_local_input" else name: value for name, value in inputs.items()}
        self.input, self.output = PrepareModuleInput(**inputs), PrepareModuleOutput(
            output_layouts=output_layouts, desired_output_layouts=desired_output_layouts)

    def _apply(self, module, device_mesh):
        return self.output._apply(self.input._apply(module, device_mesh), device_mesh)


def parallelize_module(module, device_mesh=None, parallelize_plan=None, *, src_data_rank=0):
    """Divides a module among the ranks of a mesh: by one style, or by the styles of submodules, whose names may have `*`."""
    from ...device_mesh import init_device_mesh
    from ... import get_world_size
    mesh = device_mesh or init_device_mesh("cpu", (get_world_size(),))
    if isinstance(parallelize_plan, ParallelStyle):
        return parallelize_plan._apply(module, mesh)
    for path, style in (parallelize_plan or {}).items():
        parts = path.split(".")
        for part in _found(module, parts):
            parallelize_module(part, mesh, style)
    return module


def _found(module, parts):
    """Returns the submodules by a path whose parts may be patterns."""
    found = [module]
    for part in parts:
        found = [child for one in found for name, child in one._modules.items() if child is not None and fnmatch.fnmatchcase(name, part)] if part else found
    return found


__getattr__ = attributes(__name__)
