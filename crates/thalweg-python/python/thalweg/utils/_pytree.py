"""Nested containers as lists of leaves and back (`torch.utils._pytree`)."""

import collections
import dataclasses
import functools
import json
import typing

T = typing.TypeVar("T")
S = typing.TypeVar("S")
U = typing.TypeVar("U")
R = typing.TypeVar("R")
Context = typing.Any
PyTree = typing.Any


class KeyEntry(typing.Protocol):
    """A step from a container to one of its children."""

    def __hash__(self): ...

    def __eq__(self, other): ...

    def __str__(self): ...

    def get(self, parent): ...


KeyPath = tuple


@dataclasses.dataclass(frozen=True)
class SequenceKey:
    """The step to a child by its index."""

    idx: int

    def __str__(self):
        return f"[{self.idx!r}]"

    def get(self, sequence):
        """Returns the child."""
        return sequence[self.idx]


@dataclasses.dataclass(frozen=True)
class MappingKey:
    """The step to a child by its key."""

    key: typing.Any

    def __str__(self):
        return f"[{self.key!r}]"

    def get(self, mapping):
        """Returns the child."""
        return mapping[self.key]


@dataclasses.dataclass(frozen=True)
class GetAttrKey:
    """The step to a child by its attribute."""

    name: str

    def __str__(self):
        return f".{self.name}"

    def get(self, obj):
        """Returns the child."""
        return getattr(obj, self.name)


class NodeDef(typing.NamedTuple):
    """The functions of a kind of container."""

    type: type
    flatten_fn: typing.Callable
    unflatten_fn: typing.Callable
    flatten_with_keys_fn: typing.Optional[typing.Callable]


class _Serialized(typing.NamedTuple):
    """The serialized name of a kind of container, and its context."""

    name: str
    dump: typing.Optional[typing.Callable]
    load: typing.Optional[typing.Callable]


SUPPORTED_NODES = {}
SUPPORTED_SERIALIZED_TYPES = {}
_BY_NAME = {}
CONSTANT_NODES = set()
# Kinds whose children are identified by index: named tuples are one kind.
BUILTIN_TYPES = frozenset({tuple, list, dict, collections.namedtuple, collections.OrderedDict, collections.defaultdict, collections.deque})


def register_pytree_node(cls, flatten_fn, unflatten_fn, *, serialized_type_name=None, to_dumpable_context=None, from_dumpable_context=None,
                         flatten_with_keys_fn=None):
    """Registers a class as a container. `flatten_fn` returns its children and a context, `unflatten_fn` creates an object from
    them."""
    if cls in SUPPORTED_NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    if (to_dumpable_context is None) != (from_dumpable_context is None):
        raise ValueError(f"Both to_dumpable_context and from_dumpable_context for {cls} must be None or registered.")
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)
    name = serialized_type_name or f"{cls.__module__}.{cls.__qualname__}"
    SUPPORTED_SERIALIZED_TYPES[cls] = _Serialized(name, to_dumpable_context, from_dumpable_context)
    _BY_NAME[name] = cls


_register_pytree_node = _private_register_pytree_node = register_pytree_node


def register_dataclass(cls, *, field_names=None, drop_field_names=None, serialized_type_name=None):
    """Registers a dataclass as a container of its fields."""
    if field_names is None:
        dropped = drop_field_names or ()
        field_names = [field.name for field in dataclasses.fields(cls) if field.name not in dropped]
    register_pytree_node(
        cls, lambda obj: ([getattr(obj, name) for name in field_names], list(field_names)),
        lambda values, names: cls(**dict(zip(names, values))), serialized_type_name=serialized_type_name,
        flatten_with_keys_fn=lambda obj: ([(GetAttrKey(name), getattr(obj, name)) for name in field_names], list(field_names)))


def register_constant(cls):
    """Makes the objects of a class part of the structure instead of leaves."""
    register_pytree_node(cls, lambda obj: ([], obj), lambda _, context: context, flatten_with_keys_fn=lambda obj: ([], obj))
    CONSTANT_NODES.add(cls)


def is_constant_class(cls):
    """Returns whether the objects of a class are part of the structure."""
    return cls in CONSTANT_NODES


def _deregister_pytree_node(cls):
    del SUPPORTED_NODES[cls]
    del _BY_NAME[SUPPORTED_SERIALIZED_TYPES.pop(cls).name]


def is_namedtuple_class(cls):
    """Returns whether a class is a named tuple class."""
    return isinstance(cls, type) and issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple) and \
        all(isinstance(field, str) for field in cls._fields)


def is_namedtuple(obj):
    """Returns whether an object is a named tuple, or a named tuple class."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


is_namedtuple_instance = _is_namedtuple_instance = lambda obj: is_namedtuple_class(type(obj))


def is_structseq_class(cls):
    """Returns whether a class is a structseq: one of the interpreter's tuples with named fields."""
    return isinstance(cls, type) and cls.__bases__ == (tuple,) and all(
        isinstance(getattr(cls, name, None), int) for name in ("n_fields", "n_sequence_fields", "n_unnamed_fields"))


def is_structseq_instance(obj):
    """Returns whether an object is a structseq: one of the interpreter's tuples with named fields."""
    return is_structseq_class(type(obj))


def is_structseq(obj):
    """Returns whether an object is a structseq, one of the interpreter's tuples with named fields, or the class of one."""
    return is_structseq_class(obj if isinstance(obj, type) else type(obj))


def _numbered(values):
    return [(SequenceKey(number), value) for number, value in enumerate(values)]


def _keyed(mapping):
    return [(MappingKey(key), value) for key, value in mapping.items()]


register_pytree_node(tuple, lambda obj: (list(obj), None), lambda values, _: tuple(values), serialized_type_name="builtins.tuple",
                     flatten_with_keys_fn=lambda obj: (_numbered(obj), None))
register_pytree_node(list, lambda obj: (obj, None), lambda values, _: list(values), serialized_type_name="builtins.list",
                     flatten_with_keys_fn=lambda obj: (_numbered(obj), None))


def _dict_flatten(obj):
    return list(obj.values()), list(obj)


def _dict_unflatten(values, keys):
    return dict(zip(keys, values))


def _dict_flatten_with_keys(obj):
    return _keyed(obj), list(obj)


register_pytree_node(dict, _dict_flatten, _dict_unflatten, serialized_type_name="builtins.dict", flatten_with_keys_fn=_dict_flatten_with_keys)
register_pytree_node(
    collections.namedtuple, lambda obj: (list(obj), type(obj)), lambda values, kind: kind(*values),
    serialized_type_name="collections.namedtuple",
    flatten_with_keys_fn=lambda obj: ([(GetAttrKey(name), getattr(obj, name)) for name in obj._fields], type(obj)))
register_pytree_node(
    collections.OrderedDict, lambda obj: (list(obj.values()), list(obj)), lambda values, keys: collections.OrderedDict(zip(keys, values)),
    serialized_type_name="collections.OrderedDict", flatten_with_keys_fn=lambda obj: (_keyed(obj), list(obj)))
register_pytree_node(
    collections.defaultdict, lambda obj: (list(obj.values()), [obj.default_factory, list(obj)]),
    lambda values, context: collections.defaultdict(context[0], zip(context[1], values)),
    serialized_type_name="collections.defaultdict", flatten_with_keys_fn=lambda obj: (_keyed(obj), [obj.default_factory, list(obj)]))
register_pytree_node(
    collections.deque, lambda obj: (list(obj), obj.maxlen), lambda values, limit: collections.deque(values, maxlen=limit),
    serialized_type_name="collections.deque", flatten_with_keys_fn=lambda obj: (_numbered(obj), obj.maxlen))


# The functions of each container under PyTorch's names, which libraries register for containers of their own.
for _name, _kind in {"tuple": tuple, "list": list, "dict": dict, "namedtuple": collections.namedtuple, "ordereddict": collections.OrderedDict,
                     "defaultdict": collections.defaultdict, "deque": collections.deque}.items():
    _node = SUPPORTED_NODES[_kind]
    globals().update({f"_{_name}_flatten": _node.flatten_fn, f"_{_name}_unflatten": _node.unflatten_fn,
                      f"_{_name}_flatten_with_keys": _node.flatten_with_keys_fn})


def _get_node_type(tree):
    kind = type(tree)
    return collections.namedtuple if kind not in SUPPORTED_NODES and is_namedtuple_class(kind) else kind


def tree_is_leaf(tree, is_leaf=None):
    """Returns whether an object is a leaf: not a container, or one that `is_leaf` accepts."""
    return (is_leaf is not None and is_leaf(tree)) or _get_node_type(tree) not in SUPPORTED_NODES


_is_leaf = tree_is_leaf


@dataclasses.dataclass(init=False, eq=True, repr=False)
class TreeSpec:
    """The structure of nested containers without their leaves."""

    type: typing.Any
    context: typing.Any
    children_specs: list
    num_nodes: int = dataclasses.field(init=False, compare=False)
    num_leaves: int = dataclasses.field(init=False, compare=False)
    num_children: int = dataclasses.field(init=False, compare=False)

    def __init__(self, type, context, children_specs):
        self.type, self.context, self.children_specs = type, context, list(children_specs)
        self.num_children = len(self.children_specs)
        if type is None:
            self.num_nodes = self.num_leaves = 1
        else:
            self.num_nodes = 1 + sum(child.num_nodes for child in self.children_specs)
            self.num_leaves = sum(child.num_leaves for child in self.children_specs)

    def __repr__(self):
        if self.is_leaf():
            return "*"
        name = getattr(self.type, "__name__", repr(self.type))
        return f"TreeSpec({name}, {self.context}, [{', '.join(map(repr, self.children_specs))}])"

    def __hash__(self):
        if self.is_leaf():
            return hash((None, None, ()))
        context = tuple(map(repr, self.context)) if isinstance(self.context, list) else repr(self.context)
        return hash((self.type, context, tuple(self.children_specs)))

    def is_leaf(self):
        """Returns whether this is the structure of a leaf."""
        return self.type is None

    def children(self):
        """Returns the structures of the children."""
        return self.children_specs

    def child(self, index):
        """Returns the structure of a child."""
        return self.children_specs[index]

    def flatten_up_to(self, tree):
        """Returns the parts of a tree at the positions of the leaves. The tree must begin with this structure."""
        if self.is_leaf():
            return [tree]
        kind = _get_node_type(tree)
        if kind not in SUPPORTED_NODES or (kind is not self.type and {kind, self.type} - {dict, collections.OrderedDict,
                                                                                           collections.defaultdict}):
            raise ValueError(f"Type mismatch; expected {self.type!r}, but got {type(tree)!r}.")
        children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
        children = list(children)
        if len(children) != self.num_children:
            raise ValueError(f"Node arity mismatch; expected {self.num_children}, but got {len(children)}.")
        if isinstance(tree, dict):
            keys = self.context[1] if self.type is collections.defaultdict else self.context
            if set(keys) != set(tree):
                raise ValueError(f"Node keys mismatch; expected {list(keys)!r}, but got {list(tree)!r}.")
            children = [tree[key] for key in keys]
        elif context != self.context and self.type is not collections.deque:
            raise ValueError(f"Node context mismatch for custom node type {self.type!r}.")
        return [part for child, spec in zip(children, self.children_specs) for part in spec.flatten_up_to(child)]

    def unflatten(self, leaves):
        """Returns the containers with these leaves."""
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(f"treespec.unflatten(leaves): `leaves` has length {len(leaves)} but the spec refers to a pytree that holds "
                             f"{self.num_leaves} items ({self}).")
        return self._filled(iter(leaves))

    def _filled(self, leaves):
        if self.is_leaf():
            return next(leaves)
        return SUPPORTED_NODES[self.type].unflatten_fn([child._filled(leaves) for child in self.children_specs], self.context)


class LeafSpec(TreeSpec):
    """The structure of a leaf."""

    def __init__(self):
        super().__init__(None, None, [])

    def __eq__(self, other):
        return isinstance(other, TreeSpec) and other.is_leaf()

    __hash__ = TreeSpec.__hash__


_LEAF_SPEC = LeafSpec()


def treespec_leaf():
    """Returns the structure of a leaf."""
    return _LEAF_SPEC


def treespec_tuple(iterable=()):
    """Returns the structure of a tuple of structures."""
    return TreeSpec(tuple, None, list(iterable))


def treespec_dict(mapping=(), **kwargs):
    """Returns the structure of a dictionary of structures."""
    values = dict(mapping, **kwargs)
    return TreeSpec(dict, list(values), list(values.values()))


def _flatten(tree, leaves, is_leaf):
    if tree_is_leaf(tree, is_leaf):
        leaves.append(tree)
        return _LEAF_SPEC
    kind = _get_node_type(tree)
    children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    return TreeSpec(kind, context, [_flatten(child, leaves, is_leaf) for child in children])


def tree_flatten(tree, is_leaf=None):
    """Returns the leaves of nested containers, and their structure."""
    leaves = []
    return leaves, _flatten(tree, leaves, is_leaf)


def tree_unflatten(leaves, treespec):
    """Returns nested containers made from leaves and a structure."""
    if not isinstance(treespec, TreeSpec):
        raise TypeError(f"tree_unflatten(leaves, treespec): Expected `treespec` to be instance of TreeSpec but got item of type {type(treespec)}.")
    return treespec.unflatten(leaves)


def tree_iter(tree, is_leaf=None):
    """Yields the leaves of nested containers."""
    if tree_is_leaf(tree, is_leaf):
        yield tree
        return
    for child in SUPPORTED_NODES[_get_node_type(tree)].flatten_fn(tree)[0]:
        yield from tree_iter(child, is_leaf)


def tree_leaves(tree, is_leaf=None):
    """Returns the leaves of nested containers."""
    return list(tree_iter(tree, is_leaf))


def tree_structure(tree, is_leaf=None):
    """Returns the structure of nested containers."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func, tree, *rests, is_leaf=None):
    """Returns the containers with the results of a function as leaves. The structure of each of `rests` must begin with that of
    the first tree."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten(map(func, leaves, *(spec.flatten_up_to(rest) for rest in rests)))


def tree_map_(func, tree, *rests, is_leaf=None):
    """Calls a function with every leaf, and returns the tree unchanged."""
    leaves, spec = tree_flatten(tree, is_leaf)
    collections.deque(map(func, leaves, *(spec.flatten_up_to(rest) for rest in rests)), maxlen=0)
    return tree


def _chosen(condition):
    if isinstance(condition, (type, tuple)) or type(condition).__name__ == "UnionType":
        return lambda value: isinstance(value, condition)
    if callable(condition):
        return condition
    raise TypeError("Argument must be a type, a tuple of types, or a callable.")


def map_only(type_or_types_or_pred, /):
    """Returns a decorator that limits a function to values of these types. Other values are returned unchanged."""
    chosen = _chosen(type_or_types_or_pred)

    def wrapper(func):
        @functools.wraps(func)
        def wrapped(value):
            return func(value) if chosen(value) else value
        return wrapped
    return wrapper


def tree_map_only(type_or_types_or_pred, /, func, tree, is_leaf=None):
    """Returns the containers with the leaves of some types replaced by the results of a function."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(type_or_types_or_pred, /, func, tree, is_leaf=None):
    """Calls a function with every leaf of some types, and returns the tree unchanged."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred, tree, is_leaf=None):
    """Returns whether a condition holds for all leaves."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred, tree, is_leaf=None):
    """Returns whether a condition holds for any leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(type_or_types, /, pred, tree, is_leaf=None):
    """Returns whether a condition holds for all leaves of some types."""
    return all(pred(leaf) for leaf in tree_iter(tree, is_leaf) if isinstance(leaf, type_or_types))


def tree_any_only(type_or_types, /, pred, tree, is_leaf=None):
    """Returns whether a condition holds for any leaf of some types."""
    return any(pred(leaf) for leaf in tree_iter(tree, is_leaf) if isinstance(leaf, type_or_types))


def _broadcast_to_and_flatten(tree, treespec, is_leaf=None):
    """Returns a tree's leaves, each repeated for every leaf that the structure has at its position, or None if the two do not
    match."""
    if tree_is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    kind = _get_node_type(tree)
    if treespec.is_leaf() or kind is not treespec.type:
        return None
    children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    if len(children) != treespec.num_children or context != treespec.context:
        return None
    leaves = []
    for child, spec in zip(children, treespec.children_specs):
        part = _broadcast_to_and_flatten(child, spec, is_leaf)
        if part is None:
            return None
        leaves += part
    return leaves


def _with_paths(tree, path, found, is_leaf):
    if tree_is_leaf(tree, is_leaf):
        found.append((path, tree))
        return
    node = SUPPORTED_NODES[_get_node_type(tree)]
    if node.flatten_with_keys_fn is None:
        raise ValueError(f"Did not find a flatten_with_keys_fn for type: {node.type}. Please pass a flatten_with_keys_fn argument to "
                         "register_pytree_node.")
    for key, child in node.flatten_with_keys_fn(tree)[0]:
        _with_paths(child, (*path, key), found, is_leaf)


def tree_leaves_with_path(tree, is_leaf=None):
    """Returns the leaves, each with its path."""
    found = []
    _with_paths(tree, (), found, is_leaf)
    return found


def tree_flatten_with_path(tree, is_leaf=None):
    """Returns the leaves, each with its path, and the structure."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(func, tree, *rests, is_leaf=None):
    """Returns the containers with the results of a function of the path and the leaf."""
    found, spec = tree_flatten_with_path(tree, is_leaf)
    paths, leaves = zip(*found) if found else ((), ())
    return spec.unflatten(map(func, paths, leaves, *(spec.flatten_up_to(rest) for rest in rests)))


def keystr(path):
    """Returns a path as text."""
    return "".join(str(key) for key in path)


def key_get(obj, path):
    """Returns the part of a tree at a path."""
    for key in path:
        obj = key.get(obj)
    return obj


def arg_tree_leaves(*args, **kwargs):
    """Returns the leaves of arguments."""
    return tree_leaves((args, kwargs))


def _as_data(spec):
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    serialized = SUPPORTED_SERIALIZED_TYPES[spec.type]
    context = spec.context
    if serialized.dump is not None:
        context = serialized.dump(context)
    elif spec.type is collections.namedtuple:
        context = f"{context.__module__}.{context.__qualname__}"
    else:
        context = json.dumps(context)
    return {"type": serialized.name, "context": context, "children_spec": [_as_data(child) for child in spec.children_specs]}


def treespec_dumps(treespec, protocol=None):
    """Returns a structure in serialized form."""
    if not isinstance(treespec, TreeSpec):
        raise TypeError(f"treespec_dumps(treespec, protocol): Expected `treespec` to be instance of TreeSpec but got item of type {type(treespec)}.")
    return json.dumps([1, _as_data(treespec)])


def _from_data(data):
    if data["type"] is None:
        return _LEAF_SPEC
    if data["type"] not in _BY_NAME:
        raise NotImplementedError(f"Deserializing {data['type']} in pytree is not registered.")
    kind = _BY_NAME[data["type"]]
    load = SUPPORTED_SERIALIZED_TYPES[kind].load or json.loads
    return TreeSpec(kind, load(data["context"]), [_from_data(child) for child in data["children_spec"]])


def treespec_loads(serialized):
    """Returns a structure from its serialized form."""
    protocol, data = json.loads(serialized)
    if protocol != 1:
        raise ValueError(f"Unknown protocol {protocol}. Available protocols: [1]")
    return _from_data(data)


def treespec_pprint(treespec):
    """Returns a structure as readable text."""
    return repr(treespec.unflatten(["*"] * treespec.num_leaves)).replace("'*'", "*")
