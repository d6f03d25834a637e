"""Generated code: a graph as a function in Python."""

import collections
import collections.abc
import dataclasses
import enum
import re
import types
import typing

from .. import _core
from ._names import custom_builtins, is_from_torch, qualified, type_repr
from .node import Node, map_arg

reflectable_magic_methods = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "floordiv": "{} // {}", "truediv": "{} / {}", "div": "{} / {}", "mod": "{} % {}",
    "pow": "{} ** {}", "lshift": "{} << {}", "rshift": "{} >> {}", "and_": "{} & {}", "or_": "{} | {}", "xor": "{} ^ {}",
    "getitem": "{}[{}]", "matmul": "{} @ {}"}
magic_methods = {
    "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "gt": "{} > {}", "le": "{} <= {}", "ge": "{} >= {}", "pos": "+{}", "neg": "-{}",
    "invert": "~{}", **reflectable_magic_methods}
inplace_methods = {
    "iadd": "{} += {}", "iand": "{} &= {}", "ifloordiv": "{} //= {}", "ilshift": "{} <<= {}", "imod": "{} %= {}", "imul": "{} *= {}",
    "imatmul": "{} @= {}", "ior": "{} |= {}", "ipow": "{} **= {}", "irshift": "{} >>= {}", "isub": "{} -= {}", "itruediv": "{} /= {}",
    "ixor": "{} ^= {}", "setitem": "{}[{}] = {}"}


@dataclasses.dataclass
class PythonCode:
    """A graph as code: the text, the globals that it needs, and the line of each node."""

    src: str
    globals: dict
    _lineno_map: typing.Any = None
    _prologue_start: int = 0


def _format_target(base, target):
    """Returns the expression for an attribute, by its path."""
    for name in target.split("."):
        base = f"{base}.{name}" if name.isidentifier() else f'getattr({base}, "{name}")'
    return base


class _Writer:
    """The code of one graph, as it is written."""

    def __init__(self, nodes, root_module, namespace, verbose):
        self.nodes, self.root, self.namespace, self.verbose = nodes, root_module, namespace, verbose
        self.globals, self.wrapped, self.lines, self.inputs, self.returned, self.line_of = {}, {}, [], [], "", {}
        self._dropped = self._last_uses()
        self._summary = None
        for name, builtin in custom_builtins.items():
            self.add_global(name, builtin.obj)

    def _last_uses(self):
        """Returns the nodes whose values are last used by a node, by that node."""
        last, dropped = {}, collections.defaultdict(list)
        for node in reversed(self.nodes):
            def use(part, user=node):
                if part not in last:
                    last[part] = user
                    dropped[user].append(part)
            map_arg(node.args, use)
            map_arg(node.kwargs, use)
        return dropped

    def add_global(self, hint, obj):
        """Returns the name by which the code finds an object."""
        if is_from_torch(obj) and obj is not _core.device:
            return qualified(obj)
        name = hint.replace(".", "_")
        if name in self.globals:
            assert self.globals[name] is obj, f"the name {name} is used for two objects"
            return name
        try:
            name = self.namespace.create_name(name, obj)
        except TypeError:
            name = self.namespace.create_name(name, None)
        self.globals[name] = obj
        return name

    def type_name(self, o):
        """Returns a type as it is written in annotations. What has no name of its own becomes a global."""
        if o == ():
            return "()"
        text = type_repr(o)
        if text.startswith("torch.") and is_from_torch(o):
            return text
        origin, parts = getattr(o, "__origin__", None), getattr(o, "__args__", ())
        if isinstance(origin, type) and parts and all(isinstance(part, type) for part in parts) and origin not in (type, collections.abc.Callable):
            own = getattr(typing, o._name, None) if getattr(o, "_name", None) else origin
            name = self.add_global(f"typing_{o._name}" if own is not origin else type_repr(origin), own)
            return f"{name}[{','.join(self.type_name(part) for part in parts)}]"
        return self.add_global(re.sub(r"\W+", "_", text) if "." in text or not text.isidentifier() else text, o)

    def text(self, value):
        """Returns an argument as an expression."""
        if isinstance(value, Node):
            return repr(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            name = self.add_global(type_repr(type(value)), type(value))
            return f"{name}{self._listed(value, '(', ')')}" if not hasattr(value, "_custom_fx_repr_fn") else self._named_tuple(name, value)
        if isinstance(value, tuple):
            return self._listed(value, "(", ")")
        if isinstance(value, list):
            return self._listed(value, "[", "]")
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key!r}: {self.text(part)}" for key, part in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
        if hasattr(value, "_qualified_name"):
            return qualified(value)
        if isinstance(value, enum.Enum):
            return f"{self.add_global(type(value).__name__, type(value))}.{value.name}"
        if isinstance(value, _core.Tensor):
            return f"torch.Tensor(size={list(value.shape)})"
        if isinstance(value, type) or isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
            return self.add_global(qualified(value), value)
        return repr(value)

    def _named_tuple(self, name, value):
        return f"{name}({', '.join(self.text(part) for part in value)})"

    def _listed(self, values, begin, end):
        inner = ", ".join(self.text(part) for part in values)
        return f"{begin}{inner},{end}" if begin == "(" and len(values) == 1 and not hasattr(values, "_fields") else f"{begin}{inner}{end}"

    def arguments(self, args, kwargs):
        """Returns the arguments of a call."""
        return ", ".join([self.text(part) for part in args] + [f"{name} = {self.text(part)}" for name, part in kwargs.items()])

    def written(self, node):
        """Returns the statement of a node, without the end of the line. Returns None for an input that needs none."""
        kind = "" if node.type is None else f" : {self.type_name(node.type)}"
        here = f"{node!r}{kind} = "
        if node.op == "placeholder":
            default = "" if not node.args else f" = {self.text(node.args[0])}"
            self.inputs.append(f"{node.target}{kind}{default}")
            name = node.target.replace("*", "")
            return f"{node!r} = {name}" if name != repr(node) else None
        if node.op == "call_method":
            return f"{here}{_format_target(self.text(node.args[0]), node.target)}({self.arguments(node.args[1:], node.kwargs)})"
        if node.op == "call_function":
            return self._called(node, here)
        if node.op == "call_module":
            return f"{here}{_format_target(self.root, node.target)}({self.arguments(node.args, node.kwargs)})"
        if node.op == "get_attr":
            return f"{here}{_format_target(self.root, node.target)}"
        if node.op == "output":
            if node.type is not None:
                self.returned = f" -> {self.type_name(node.type)}"
            return None
        raise NotImplementedError(f"node: {node.op} {node.target}")

    def _called(self, node, here):
        """Returns the statement of a call of a function: an operator of Python where it is one."""
        target, name = node.target, getattr(node.target, "__name__", "")
        module = getattr(target, "__module__", None)
        if module == "_operator" and not node.kwargs:
            if name in magic_methods:
                return here + magic_methods[name].format(*(self.text(part) for part in node.args))
            if name in inplace_methods:
                text = inplace_methods[name].format(*(self.text(part) for part in node.args))
                return f"{text};  {here}{self.text(node.args[0])}"
        found = self.add_global(qualified(target), target)
        if found == "getattr" and len(node.args) == 2 and isinstance(node.args[1], str) and node.args[1].isidentifier():
            return f"{here}{_format_target(self.text(node.args[0]), node.args[1])}"
        if node.meta.get("is_wrapped", False):
            self.wrapped.setdefault(found)
        return f"{here}{found}({self.arguments(node.args, node.kwargs)})"

    def end(self, node):
        """Returns the end of a node's line, which drops the values that are not used any more."""
        if node.op in ("placeholder", "output"):
            return "\n"
        gone = [part for part in self._dropped.get(node, ())]
        if not node.users:
            gone.append(node)
        return f";  {' = '.join([repr(part) for part in gone] + ['None'])}\n" if gone else "\n"

    def write(self, codegen):
        """Writes the lines of all nodes."""
        for place, node in enumerate(self.nodes):
            if self.verbose:
                self._comment(node)
            statement = self.written(node)
            if node.op == "output":
                self.lines.append(_output(codegen, node.args[0], self.text))
            elif statement is not None:
                self.lines.append(statement + self.end(node))
            self.line_of.setdefault(sum(text.count("\n") for text in self.lines) + (node.op == "output"), place)
        if not self.lines:
            self.lines.append("pass\n")

    def _comment(self, node):
        """Adds the lines of the program that a node comes from, where they change."""
        if node.op in ("placeholder", "output"):
            return
        summary = "# No stacktrace found for following nodes"
        if node.stack_trace:
            summary = _shortened(node.stack_trace)
        if summary != self._summary:
            self._summary = summary
            self.lines.append(f"{'' if summary.startswith('# No') else chr(10)}{summary}\n")


def _output(codegen, args, text):
    """Returns the line that returns the result. Generators of programs may have the earlier signature of the method."""
    import inspect
    names = inspect.signature(codegen.generate_output).parameters
    takes_text = "repr_fn" in names or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in names.values())
    return codegen.generate_output(args, repr_fn=text) if takes_text else codegen.generate_output(args)


def _shortened(trace):
    """Returns the last line of a trace as a comment."""
    lines = [line for line in trace.strip().split("\n") if line]
    for place in range(len(lines) - 1, -1, -1):
        text = lines[place].strip()
        if text.startswith("File "):
            file, _, rest = text.removeprefix("File ").partition(", line ")
            number, _, name = rest.partition(", in ")
            code = lines[place + 1].strip() if place + 1 < len(lines) else ""
            return f" # File: {file.strip(chr(34))}:{number} in {name}, code: {code}"
    return f" # {lines[-1]}"


class CodeGen:
    """Generates the code of graphs. Subclasses change its parts."""

    def __init__(self):
        self._body_transformer, self._func_name = None, "forward"

    def gen_fn_def(self, free_vars, maybe_return_annotation):
        """Returns the first line of the function."""
        if not free_vars or free_vars[0] != "self":
            free_vars.insert(0, "self")
        return f"def {self._func_name}({', '.join(free_vars)}){maybe_return_annotation}:"

    def generate_output(self, output_args, *, repr_fn=repr, **_):
        """Returns the line that returns the result."""
        return f"return {repr_fn(output_args)}"

    def process_inputs(self, *args):
        """Returns the inputs of the graph for the arguments of the function."""
        return args

    def process_outputs(self, outputs):
        """Returns the result of the function for the result of the graph."""
        return outputs

    def additional_globals(self):
        """Returns more globals of the code, as pairs of a name and an object."""
        return []

    def _gen_python_code(self, nodes, root_module, namespace, *, verbose=False, **_):
        writer = _Writer(nodes, root_module, namespace, verbose)
        for name, value in self.additional_globals():
            writer.add_global(name, value)
        writer.write(self)
        lines = writer.lines
        if self._body_transformer is not None:
            lines = self._body_transformer(lines)
        wrapped = "\n".join(f'torch.fx.wrap("{name}")' for name in writer.wrapped)
        first = self.gen_fn_def(writer.inputs, writer.returned)
        body = "\n".join(f"    {line}" for line in "".join(lines).lstrip("\n").split("\n"))
        ending = "" if body.endswith("\n    ") else "\n    "
        return PythonCode(f"\n{wrapped}\n\n{first}\n{body}{ending}", writer.globals, writer.line_of, 4 + len(writer.wrapped))


class PyTreeInfo(typing.NamedTuple):
    """How the arguments and the result of a function are nested."""

    orig_args: list
    in_spec: typing.Any
    out_spec: typing.Any


class _PyTreeCodeGen(CodeGen):
    """Generates the code of graphs whose inputs are the leaves of nested arguments."""

    def __init__(self, pytree_info):
        super().__init__()
        self.pytree_info = pytree_info

    def process_inputs(self, *inputs):
        """Returns the leaves of the arguments."""
        from ..utils._pytree import arg_tree_leaves
        return arg_tree_leaves(*inputs)

    def process_outputs(self, out):
        """Returns the nested result."""
        from ..utils._pytree import tree_unflatten
        if not isinstance(out, (list, tuple)):
            out = [out]
        assert self.pytree_info.out_spec is not None
        return tree_unflatten(out, self.pytree_info.out_spec)

    def gen_fn_def(self, free_vars, maybe_return_annotation):
        """Returns the first lines of the function, which flatten the arguments."""
        if self.pytree_info is None:
            return super().gen_fn_def(free_vars, maybe_return_annotation)
        names = list(self.pytree_info.orig_args)
        if names[:1] == ["self"]:
            free_vars.insert(0, "self")
        text = super().gen_fn_def(list(names), maybe_return_annotation)
        if free_vars:
            leaves = [name.split(":")[0].split("=")[0].strip() for name in free_vars]
            text += f"\n    {', '.join(leaves)}, = fx_pytree.tree_flatten_spec([{', '.join(names)}], self._in_spec)"
        return text

    def generate_output(self, output_args, *, repr_fn=repr, **_):
        """Returns the line that returns the nested result."""
        if self.pytree_info and self.pytree_info.out_spec:
            return f"return pytree.tree_unflatten({repr_fn(output_args)}, self._out_spec)"
        return super().generate_output(output_args, repr_fn=repr_fn)


