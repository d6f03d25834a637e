"""Exported programs: how they are made from modules, and run (`torch.export.exported_program`)."""

import copy
import inspect

from .. import _core
from ..autograd import no_grad
from ..fx.graph import Graph, PyTreeInfo, _PyTreeCodeGen
from ..fx.graph_module import GraphModule
from ..nn.module import Module
from ..nn.parameter import Parameter
from ..utils import _pytree
from . import graph_signature as signatures
from ._trace import Recorder, SymInt, shown
from .dynamic_shapes import Dim, of_leaves

Tensor = _core.Tensor


def bound(module, args, kwargs):
    """Returns the arguments of a module's `forward` by name; those of `*args` and `**kwargs` one by one."""
    found = {}
    signature = inspect.signature(module.forward)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({f"{name}_{place}": one for place, one in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


class ModuleCallSignature:
    """How the arguments and the result of a module are nested."""

    def __init__(self, in_spec, out_spec):
        self.in_spec, self.out_spec = in_spec, out_spec


class Inputs:
    """The inputs that calls of an exported program pass: the names of arguments, and the fixed facts of each leaf."""

    def __init__(self, names, spec, leaves, shapes):
        self.names, self.spec = names, spec
        # For each leaf its dtype and its extents, an extent that may change as its range and its name, or its value.
        self.leaves = [self._described(value, shape) for value, shape in zip(leaves, shapes)]

    @staticmethod
    def _described(value, shape):
        if not isinstance(value, Tensor):
            return {"value": value}

        def extent(place, size):
            dim = shape.get(place)
            if dim is None:
                return size
            if isinstance(dim, Dim):
                return [dim.__name__ if dim._root is dim else None, dim.min, dim.max]
            return [None, 0, (1 << 63) - 1]
        return {"dtype": str(value.dtype), "extents": [extent(place, size) for place, size in enumerate(value.shape)]}

    def check(self, leaves, spec):
        """Raises if a call's arguments are not those that the program was exported for."""
        if spec != self.spec:
            raise ValueError(f"Trying to flatten user inputs with exported input tree spec: \n{self.spec}\nbut actually got inputs with tree spec of: \n{spec}")
        known = {}
        for place, (value, leaf) in enumerate(zip(leaves, self.leaves)):
            where = f"*args[{place}]"
            if "extents" not in leaf:
                if value != leaf["value"]:
                    raise AssertionError(f"Expected input at {where} to be equal to {leaf['value']}, but got {value}")
            elif not isinstance(value, Tensor):
                raise RuntimeError(f"Expected input at {where} to be a tensor, but got {type(value).__name__}")
            else:
                self._check_tensor(where, value, leaf, known)

    @staticmethod
    def _check_tensor(where, value, leaf, known):
        extents = leaf["extents"]
        if str(value.dtype) != leaf["dtype"]:
            raise RuntimeError(f"Expected input at {where}.dtype to be {leaf['dtype']}, but got {value.dtype}")
        if value.dim() != len(extents):
            raise RuntimeError(f"Expected input at {where}.shape to have {len(extents)} dimensions, but got {value.dim()}")
        for dim, (size, extent) in enumerate(zip(value.shape, extents)):
            at = f"Expected input at {where}.shape[{dim}] to be"
            if isinstance(extent, int):
                if size != extent:
                    raise AssertionError(f"{at} equal to {extent}, but got {size}. If you meant for this dimension to be dynamic, please re-export and "
                                         "specify dynamic_shapes (e.g. with Dim.DYNAMIC)")
                continue
            name, low, high = extent
            if not low <= size <= high:
                raise RuntimeError(f"{at} {'>= ' + str(low) if size < low else '<= ' + str(high)}, but got {size}")
            if name is not None and known.setdefault(name, size) != size:
                raise RuntimeError(f"{at} equal to {known[name]}, but got {size}")


class ExportedProgram:
    """A module as a graph of operators, with its parameters and buffers."""

    def __init__(self, root, graph, graph_signature, state_dict, range_constraints=None, module_call_graph=(), example_inputs=None, constants=None, *,
                 inputs, out_spec, verifiers=None):
        graph._codegen = type(graph._codegen)()
        self._graph_module, self._graph_signature = GraphModule(root, graph), graph_signature
        self._state_dict, self._constants = state_dict, constants or {}
        self._range_constraints, self._example_inputs = range_constraints or {}, example_inputs
        self._inputs, self._out_spec = inputs, out_spec

    graph_module = property(lambda self: self._graph_module)
    graph = property(lambda self: self._graph_module.graph)
    graph_signature = property(lambda self: self._graph_signature)
    state_dict = property(lambda self: self._state_dict)
    constants = tensor_constants = property(lambda self: self._constants)
    range_constraints = property(lambda self: self._range_constraints)
    example_inputs = property(lambda self: self._example_inputs)
    dialect = property(lambda self: "TRAINING")
    call_spec = property(lambda self: ModuleCallSignature(self._inputs.spec, self._out_spec))
    module_call_graph = property(lambda self: [])

    def named_parameters(self):
        """Yields the parameters with their names."""
        for name in self.graph_signature.parameters:
            yield name, self.state_dict[name]

    def parameters(self):
        """Yields the parameters."""
        for _, value in self.named_parameters():
            yield value

    def named_buffers(self):
        """Yields the buffers with their names."""
        for name in self.graph_signature.buffers:
            yield name, self._value(name)

    def buffers(self):
        """Yields the buffers."""
        for _, value in self.named_buffers():
            yield value

    def _value(self, name):
        return self._state_dict[name] if name in self._state_dict else self._constants[name]

    def module(self, check_guards=True):
        """Returns a module that computes the graph, with the parameters and buffers as its own."""
        graph, kept = Graph(), {}
        targets = {one.arg.name: one.target for one in self.graph_signature.input_specs if one.target is not None}
        for node in self.graph.nodes:
            if node.op == "placeholder" and node.name in targets:
                kept[node] = graph.get_attr(targets[node.name])
                kept[node].meta = dict(node.meta)
            elif node.op == "output":
                graph.output(tuple(kept.get(part, part) if not isinstance(part, (list, tuple)) else part for part in node.args[0]))
            else:
                kept[node] = graph.node_copy(node, lambda part: kept[part])
        graph._codegen = _PyTreeCodeGen(PyTreeInfo(list(self._inputs.names), self._inputs.spec, self._out_spec))
        root = Module()
        for name in targets.values():
            _place(root, name, self._value(name), name in self.graph_signature.non_persistent_buffers or name in self._constants)
        made = GraphModule(root, graph)
        if check_guards:
            made.register_forward_pre_hook(self._checked, with_kwargs=True)
        return made

    def _checked(self, module, args, kwargs):
        given = dict(zip(self._inputs.names, args))
        unknown = [name for name in kwargs if name not in self._inputs.names]
        if unknown or len(args) > len(self._inputs.names):
            raise TypeError(f"forward() got an unexpected argument: the program was exported with {list(self._inputs.names)}")
        given.update(kwargs)
        missing = [name for name in self._inputs.names if name not in given]
        if missing:
            raise TypeError(f"forward() missing {len(missing)} required arguments: {missing}")
        self._inputs.check(*_pytree.tree_flatten([given[name] for name in self._inputs.names]))

    def __call__(self, *args, **kwargs):
        raise RuntimeError("Unable to call ExportedProgram directly. You should use `exported_program.module()` instead.")

    def run_decompositions(self, decomp_table=None, decompose_custom_triton_ops=False):
        """Returns the program: its operators are those of the table, which are not taken apart."""
        if decomp_table:
            raise NotImplementedError("run_decompositions with a table is left out: rewrite `graph` (`torch.fx.replace_pattern`)")
        return copy.copy(self)

    def __str__(self):
        code = self.graph_module.code.strip().replace("\n", "\n    ")
        return f"ExportedProgram:\n    {code}\n\nGraph signature: {self.graph_signature}\nRange constraints: {self.range_constraints}\n"

    __repr__ = __str__


def _place(root, name, value, is_transient):
    """Sets a parameter or a buffer by its path."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, Module())
        root = root._modules[part]
    if isinstance(value, Parameter):
        root.register_parameter(last, value)
    else:
        root.register_buffer(last, value, persistent=not is_transient)


def _placeholder_names(names, spec):
    """Returns a name for each leaf of the arguments."""
    found = []
    for name, child in zip(names, spec.children_specs if hasattr(spec, "children_specs") else spec.children()):
        count = child.num_leaves
        found += [name] if count == 1 and child.is_leaf() else [f"{name}_{place}" for place in range(count)]
    return found


def export(mod, args, kwargs=None, *, dynamic_shapes=None, strict=False, preserve_module_call_signature=(), prefer_deferred_runtime_asserts_over_guards=False):
    """Returns a module as a graph: it runs once with the arguments. `dynamic_shapes` names extents that may differ in later calls."""
    if not isinstance(mod, Module):
        raise ValueError(f"Expected `mod` to be an instance of `torch.nn.Module`, got {type(mod)}.")
    if not isinstance(args, tuple):
        raise TypeError(f"Expecting `args` to be a tuple of example positional inputs, got {type(args)}")
    kwargs = kwargs or {}
    given = bound(mod, args, kwargs)
    leaves, spec = _pytree.tree_flatten(list(given.values()))
    shapes = of_leaves(dynamic_shapes, given)
    recorder = Recorder(any(shapes))
    state, specs = _name_state(mod, recorder)
    # The leaves of the call itself are in the same order: arguments by position come before those by name.
    fresh = [value.detach().clone() if isinstance(value, Tensor) else value for value in leaves]
    placeholders = []
    for name, value, shape in zip(_placeholder_names(list(given), spec), fresh, shapes):
        node = recorder.graph.placeholder(name)
        placeholders.append(node)
        if isinstance(value, Tensor):
            recorder.name(value, node)
        else:
            node.meta["val"] = value
    result = _run(mod, recorder, *_pytree.tree_unflatten(fresh, _pytree.tree_structure((args, dict(list(given.items())[len(args):])))))
    outputs, out_spec = _pytree.tree_flatten(result)
    nodes = tuple(recorder.argument(value) for value in outputs)
    recorder.graph.output(nodes)
    signature = _signature(recorder, specs, placeholders, leaves, outputs, nodes)
    ranges = {dim.__name__: (dim.min, dim.max) for shape in shapes for dim in shape.values() if isinstance(dim, Dim)}
    persistent = set(mod.state_dict())
    constants = {name: value for name, value in state.items() if name not in persistent}
    return ExportedProgram(Module(), recorder.graph, signature, {name: value for name, value in state.items() if name in persistent}, ranges, (),
                           (args, kwargs), {**constants, **recorder.constants}, inputs=Inputs(list(given), spec, leaves, shapes), out_spec=out_spec)


def _name_state(module, recorder):
    """Makes inputs of a graph from a module's parameters and buffers. Returns them by name, and their descriptions."""
    state, specs = {}, {}
    kinds = signatures.InputKind
    persistent = set(module.state_dict())
    for prefix, kind, members in (("p", kinds.PARAMETER, module.named_parameters()), ("b", kinds.BUFFER, module.named_buffers())):
        for name, value in members:
            node = recorder.graph.placeholder(f"{prefix}_{name.replace('.', '_')}")
            recorder.name(value, node)
            state[name] = value
            specs[node] = signatures.InputSpec(kind, signatures.TensorArgument(node.name), name, name in persistent if kind is kinds.BUFFER else None)
    return state, specs


def _run(module, recorder, args, kwargs):
    """Calls a module while its functions are recorded. Its buffers have their former values afterwards."""
    from .. import compiler
    buffers = [(value, value.detach().clone(), value._version) for value in module.buffers()]
    former, compiler._is_exporting = compiler._is_exporting, True
    try:
        with no_grad(), recorder:
            return module(*args, **kwargs)
    finally:
        compiler._is_exporting = former
        with no_grad():
            for value, copied, version in buffers:
                if value._version != version:
                    value.copy_(copied)


def _signature(recorder, specs, placeholders, leaves, outputs, nodes):
    kinds = signatures.InputKind
    inputs = []
    for node in recorder.graph.nodes:
        if node.op != "placeholder":
            continue
        if node in specs:
            inputs.append(specs[node])
        elif node in placeholders:
            value = leaves[placeholders.index(node)]
            argument = signatures.TensorArgument(node.name) if isinstance(value, Tensor) else signatures.ConstantArgument(node.name, value)
            inputs.append(signatures.InputSpec(kinds.USER_INPUT, argument))
        else:
            name = str(node.target).removeprefix("c_")
            inputs.append(signatures.InputSpec(kinds.CONSTANT_TENSOR, signatures.TensorArgument(node.name), name))

    def output(value, node):
        if isinstance(value, Tensor):
            return signatures.TensorArgument(node.name)
        return signatures.SymIntArgument(node.name) if isinstance(value, SymInt) else signatures.ConstantArgument("", shown(value))
    return signatures.ExportGraphSignature(inputs, [
        signatures.OutputSpec(signatures.OutputKind.USER_OUTPUT, output(value, node)) for value, node in zip(outputs, nodes)])
