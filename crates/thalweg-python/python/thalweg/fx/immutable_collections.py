"""Lists and dictionaries that cannot be changed, for arguments of nodes (`torch.fx.immutable_collections`)."""

from ..utils import _pytree

__all__ = ["immutable_dict", "immutable_list"]


def _refusing(method):
    def refuse(self, *args, **kwargs):
        kind = type(self).__name__
        raise TypeError(
            f"'{kind}' object does not support mutation. If you are attempting to modify the kwargs or args of a torch.fx.Node object, "
            "instead create a new copy of it and assign the copy to the node:\n"
            f"    new_args = ...  # copy and mutate args\n    node.args = new_args")
    refuse.__name__ = method
    return refuse


class immutable_list(list):
    """A list that cannot be changed."""

    __slots__ = ("__dict__",)

    def __reduce__(self):
        return type(self), (tuple(self),)

    def __hash__(self):
        return hash(tuple(self))


class immutable_dict(dict):
    """A dictionary that cannot be changed."""

    __slots__ = ("__dict__",)

    def __reduce__(self):
        return type(self), (tuple(self.items()),)

    def __hash__(self):
        return hash(frozenset(self.items()))


for _name in ("__delitem__", "__iadd__", "__imul__", "__setitem__", "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"):
    setattr(immutable_list, _name, _refusing(_name))
for _name in ("__delitem__", "__ior__", "__setitem__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(immutable_dict, _name, _refusing(_name))


def _flatten_list(values):
    return list(values), None


def _flatten_list_with_keys(values):
    return [(_pytree.SequenceKey(place), value) for place, value in enumerate(values)], None


def _flatten_dict(values):
    return list(values.values()), list(values)


def _flatten_dict_with_keys(values):
    return [(_pytree.MappingKey(key), value) for key, value in values.items()], list(values)


_pytree.register_pytree_node(
    immutable_list, _flatten_list, lambda values, context: immutable_list(values), serialized_type_name="torch.fx.immutable_collections.immutable_list",
    flatten_with_keys_fn=_flatten_list_with_keys)
_pytree.register_pytree_node(
    immutable_dict, _flatten_dict, lambda values, context: immutable_dict(zip(context, values)),
    serialized_type_name="torch.fx.immutable_collections.immutable_dict", flatten_with_keys_fn=_flatten_dict_with_keys)
