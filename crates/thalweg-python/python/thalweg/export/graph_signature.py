"""The kinds of inputs and outputs of exported graphs (`torch.export.graph_signature`)."""

import dataclasses
import enum
import typing


@dataclasses.dataclass
class TensorArgument:
    """An input or output that is a tensor."""

    name: str


@dataclasses.dataclass
class SymIntArgument:
    """An input or output that is an extent."""

    name: str


@dataclasses.dataclass
class ConstantArgument:
    """An input or output that is a plain value."""

    name: str
    value: typing.Any = None


class InputKind(enum.Enum):
    """Where an input comes from."""

    USER_INPUT, PARAMETER, BUFFER, CONSTANT_TENSOR, CUSTOM_OBJ, TOKEN = range(6)


class OutputKind(enum.Enum):
    """Where an output goes to."""

    USER_OUTPUT, LOSS_OUTPUT, BUFFER_MUTATION, USER_INPUT_MUTATION = range(4)


@dataclasses.dataclass
class InputSpec:
    """An input of a graph."""

    kind: InputKind
    arg: typing.Any
    target: typing.Optional[str] = None
    persistent: typing.Optional[bool] = None


@dataclasses.dataclass
class OutputSpec:
    """An output of a graph."""

    kind: OutputKind
    arg: typing.Any
    target: typing.Optional[str] = None


@dataclasses.dataclass
class ExportGraphSignature:
    """The inputs and outputs of a graph."""

    input_specs: list
    output_specs: list

    def _targets(self, kind):
        return {one.arg.name: one.target for one in self.input_specs if one.kind is kind}

    @property
    def inputs_to_parameters(self):
        """The names of parameters, by their inputs."""
        return self._targets(InputKind.PARAMETER)

    @property
    def inputs_to_buffers(self):
        """The names of buffers, by their inputs."""
        return self._targets(InputKind.BUFFER)

    @property
    def inputs_to_lifted_tensor_constants(self):
        """The names of constants, by their inputs."""
        return self._targets(InputKind.CONSTANT_TENSOR)

    @property
    def parameters(self):
        """The names of parameters."""
        return tuple(self.inputs_to_parameters.values())

    @property
    def buffers(self):
        """The names of buffers."""
        return tuple(self.inputs_to_buffers.values())

    @property
    def non_persistent_buffers(self):
        """The names of buffers that are not part of the state."""
        return {one.target for one in self.input_specs if one.kind is InputKind.BUFFER and one.persistent is False}

    @property
    def lifted_tensor_constants(self):
        """The names of constants."""
        return tuple(self.inputs_to_lifted_tensor_constants.values())

    @property
    def user_inputs(self):
        """The inputs that a call passes: names, and values of constants."""
        return tuple(one.arg.value if isinstance(one.arg, ConstantArgument) else one.arg.name for one in self.input_specs
                     if one.kind is InputKind.USER_INPUT)

    @property
    def user_outputs(self):
        """The outputs that a call returns."""
        return tuple(one.arg.value if isinstance(one.arg, ConstantArgument) else one.arg.name for one in self.output_specs
                     if one.kind is OutputKind.USER_OUTPUT)

    @property
    def buffers_to_mutate(self):
        """Buffers that outputs would replace: none, because calls write buffers in place."""
        return {one.arg.name: one.target for one in self.output_specs if one.kind is OutputKind.BUFFER_MUTATION}

    user_inputs_to_mutate = property(lambda self: {})
    assertion_dep_token = backward_signature = None

    def __str__(self):
        lines = ["", "# inputs"]
        lines += [f"{one.arg.name}: {one.kind.name}" + (f" target='{one.target}'" if one.target else "") for one in self.input_specs]
        lines += ["", "# outputs", *[f"{one.arg.name}: {one.kind.name}" for one in self.output_specs], ""]
        return "\n".join(lines)
