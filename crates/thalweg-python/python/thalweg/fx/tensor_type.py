"""Types of tensors by their shapes, in annotations (`torch.fx.tensor_type`)."""


class _DynType:
    """The type of a value of which nothing is known."""

    __name__ = "_DynType"

    def __eq__(self, other):
        return isinstance(other, type(self))

    def __hash__(self):
        return hash(self.__name__)

    def __repr__(self):
        return "Dyn"

    __str__ = __repr__


Dyn = _DynType()


class TensorType:
    """The type of a tensor by its extents, of which some may be `Dyn`."""

    def __init__(self, dim):
        self.__origin__, self.__args__ = TensorType, dim

    def __repr__(self):
        return f"TensorType[{self.__args__}]"

    def __eq__(self, other):
        return isinstance(other, type(self)) and list(self.__args__) == list(other.__args__)

    def __hash__(self):
        return hash(tuple(self.__args__))

    @staticmethod
    def __class_getitem__(*args):
        return TensorType(tuple(args[0]) if len(args) == 1 and isinstance(args[0], tuple) else args)
