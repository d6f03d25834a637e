"""Sequences of different lengths (`torch.nn.utils.rnn`)."""

import collections

from ... import _core


class PackedSequence(collections.namedtuple("PackedSequence", ["data", "batch_sizes", "sorted_indices", "unsorted_indices"])):
    """Sequences without padding: step by step, the longest sequence first. `batch_sizes` has the number of sequences at each
    step."""

    __slots__ = ()

    def __new__(cls, data, batch_sizes=None, sorted_indices=None, unsorted_indices=None):
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        return super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)

    def to(self, *args, **kwargs):
        """Returns the sequences on a device or in a dtype, or the same object if nothing changes."""
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        # The numbers of sequences at each step are not moved, and the dtype of indices is kept.
        options = {name: value for name, value in kwargs.items() if name in ("non_blocking", "copy")}
        sorted_indices, unsorted_indices = (None if one is None else one.to(data.device, **options) for one in self[2:])
        return type(self)(data, self.batch_sizes, sorted_indices, unsorted_indices)

    def cuda(self, *args, **kwargs):
        """Returns the sequences on a GPU."""
        example = self.data.new_empty(0).cuda(*args, **kwargs)
        return self.to(example.device)

    def cpu(self):
        """Returns the sequences on the device `cpu`."""
        return self.to("cpu")

    def pin_memory(self):
        """Returns the sequences in pinned memory."""
        return type(self)(self.data.pin_memory(), self.batch_sizes, *(None if one is None else one.pin_memory() for one in self[2:]))

    def double(self):
        """Returns the sequences in float64."""
        return self.to(dtype=_core.float64)

    def float(self):
        """Returns the sequences in float32."""
        return self.to(dtype=_core.float32)

    def half(self):
        """Returns the sequences in float16."""
        return self.to(dtype=_core.float16)

    def long(self):
        """Returns the sequences in int64."""
        return self.to(dtype=_core.int64)

    def int(self):
        """Returns the sequences in int32."""
        return self.to(dtype=_core.int32)

    def short(self):
        """Returns the sequences in int16."""
        return self.to(dtype=_core.int16)

    def char(self):
        """Returns the sequences in int8."""
        return self.to(dtype=_core.int8)

    def byte(self):
        """Returns the sequences in uint8."""
        return self.to(dtype=_core.uint8)

    @property
    def is_cuda(self):
        """Whether the sequences are on a GPU."""
        return self.data.is_cuda

    def is_pinned(self):
        """Returns whether the sequences are in pinned memory."""
        return self.data.is_pinned()


def invert_permutation(permutation):
    """Returns the inverse of a permutation."""
    return None if permutation is None else permutation.argsort()


def _lengths(batch_sizes):
    """Returns the lengths of sequences, the longest first, from the number of sequences at each step."""
    sizes = batch_sizes.tolist()
    return [sum(size > place for size in sizes) for place in range(sizes[0])]


def pad_sequence(sequences, batch_first=False, padding_value=0.0, padding_side="right"):
    """Returns sequences as one tensor, each padded to the length of the longest."""
    if padding_side not in ("right", "left"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    if not hasattr(sequences, "__iter__"):
        raise RuntimeError(f"pad_sequence: Expected iterable for input sequences, but got arg of type: {type(sequences)}")
    sequences = list(sequences)
    if not sequences:
        raise RuntimeError("received an empty list of sequences")
    longest = max(sequence.shape[0] for sequence in sequences)

    def padded(sequence):
        missing = longest - sequence.shape[0]
        if missing == 0:
            return sequence
        rest = _core.full([missing, *sequence.shape[1:]], padding_value, dtype=sequence.dtype, device=sequence.device)
        return _core.cat([sequence, rest] if padding_side == "right" else [rest, sequence])
    return _core.stack([padded(sequence) for sequence in sequences], 0 if batch_first else 1)


def unpad_sequence(padded_sequences, lengths, batch_first=False):
    """Returns the sequences of a padded tensor, each with its own length."""
    rows = padded_sequences.unbind(0 if batch_first else 1)
    return [row[:length] for row, length in zip(rows, _listed(lengths))]


def _listed(lengths):
    if isinstance(lengths, _core.Tensor) and lengths.dim() != 1:
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D")
    return [int(length) for length in (lengths.tolist() if isinstance(lengths, _core.Tensor) else lengths)]


def pack_padded_sequence(input, lengths, batch_first=False, enforce_sorted=True):
    """Returns padded sequences in packed form. The host waits for lengths that are a tensor."""
    lengths = _listed(lengths)
    input = input.transpose(0, 1) if batch_first else input
    if input.numel() == 0:
        raise RuntimeError("Cannot pack empty tensors.")
    if len(lengths) != input.shape[1]:
        raise RuntimeError(f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={input.shape[1]})")
    if min(lengths) <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0")
    order = None
    if not enforce_sorted:
        places = sorted(range(len(lengths)), key=lambda place: -lengths[place])
        order = _core.tensor(places, device=input.device)
        input, lengths = input.index_select(1, order), [lengths[place] for place in places]
    elif any(one < other for one, other in zip(lengths, lengths[1:])):
        raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. "
                           "You can pass `enforce_sorted=False` to pack_padded_sequence to sidestep this requirement.")
    if lengths[0] > input.shape[0]:
        raise RuntimeError(f"Expected lengths of at most {input.shape[0]}, but got {lengths[0]}")
    sizes = [sum(length > step for length in lengths) for step in range(lengths[0])]
    data = _core.cat([input[step, :size] for step, size in enumerate(sizes)])
    return PackedSequence(data, _core.tensor(sizes, device="cpu"), order)


def pad_packed_sequence(sequence, batch_first=False, padding_value=0.0, total_length=None):
    """Returns packed sequences in padded form, and their lengths."""
    sizes = sequence.batch_sizes.tolist()
    steps = sequence.data.split(sizes)
    longest = len(sizes) if total_length is None else total_length
    if longest < len(sizes):
        raise ValueError(f"Expected total_length to be at least the length of the longest sequence in input, but got {longest} "
                         f"and the longest is {len(sizes)}")
    batch, shape, data = sizes[0], list(sequence.data.shape[1:]), sequence.data
    rows = []
    for step in range(longest):
        size = sizes[step] if step < len(sizes) else 0
        rest = _core.full([batch - size, *shape], padding_value, dtype=data.dtype, device=data.device)
        rows.append(rest if size == 0 else steps[step] if size == batch else _core.cat([steps[step], rest]))
    padded, lengths = _core.stack(rows), _lengths(sequence.batch_sizes)
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = [lengths[place] for place in sequence.unsorted_indices.tolist()]
    return padded.transpose(0, 1) if batch_first else padded, _core.tensor(lengths, device="cpu")


def pack_sequence(sequences, enforce_sorted=True):
    """Returns sequences of different lengths in packed form."""
    return pack_padded_sequence(pad_sequence(sequences), [sequence.shape[0] for sequence in sequences], enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences):
    """Returns the sequences that were packed."""
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
