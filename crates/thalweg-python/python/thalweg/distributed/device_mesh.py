"""Ranks in rows and columns (`torch.distributed.device_mesh`)."""

import math
import os

from .. import _core
from . import ProcessGroup, _check, get_rank, get_world_size, is_initialized, new_group

__all__ = ["DeviceMesh", "init_device_mesh"]


def _use_own_device(device_type):
    """Makes the GPU with a process's number among those of its machine the current one, if a launcher has given it a number and no other GPU has
    been chosen."""
    from .. import cuda
    own = os.environ.get("LOCAL_RANK", "")
    if device_type == "cuda" and own.isdecimal() and int(own) < cuda.device_count() and cuda.current_device() == 0:
        cuda.set_device(int(own))


class DeviceMesh:
    """Ranks in the order of a tensor's elements. Each dimension has a group for each row along it."""

    def __init__(self, device_type, mesh, *, mesh_dim_names=None, _init_backend=True, _groups=None, _rank=None):
        self.device_type = device_type
        self.mesh = (mesh if isinstance(mesh, _core.Tensor) else _core.tensor(mesh)).to(_core.int64)
        self.mesh_dim_names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if not is_initialized():
            from . import init_process_group
            init_process_group()
        _use_own_device(device_type)
        self._rank = get_rank() if _rank is None else _rank
        self._ranks = self.mesh.tolist()
        self._groups = _groups if _groups is not None else [self._made(dim) for dim in range(self.mesh.dim())]

    def _made(self, dim):
        """Makes the groups along a dimension, and returns this rank's."""
        rows = self.mesh.movedim(dim, -1).reshape(-1, self.mesh.shape[dim]).tolist()
        if len(rows) == 1 and len(rows[0]) == get_world_size():
            return _check("DeviceMesh")
        found = None
        for row in rows:
            group = new_group(row)
            found = group if isinstance(group, ProcessGroup) else found
        return found

    @property
    def ndim(self):
        """The number of dimensions."""
        return self.mesh.dim()

    @property
    def shape(self):
        """The extents."""
        return tuple(self.mesh.shape)

    def size(self, mesh_dim=None):
        """Returns the number of ranks, of all or along a dimension."""
        return self.mesh.numel() if mesh_dim is None else self.mesh.shape[self._dim(mesh_dim)]

    def _dim(self, dim):
        if isinstance(dim, str):
            if self.mesh_dim_names is None or dim not in self.mesh_dim_names:
                raise KeyError(f"Mesh dimension '{dim}' does not exist. Available mesh dimensions are: {self.mesh_dim_names}")
            return self.mesh_dim_names.index(dim)
        return dim

    def get_group(self, mesh_dim=None):
        """Returns this rank's group along a dimension."""
        if mesh_dim is None:
            if self.ndim > 1:
                raise RuntimeError(f"Found the DeviceMesh have {self.ndim} dimensions. Optional kwarg `mesh_dim` needs to be specified when "
                                   "device_mesh.ndim > 1.")
            mesh_dim = 0
        return self._groups[self._dim(mesh_dim)]

    def get_all_groups(self):
        """Returns this rank's groups along all dimensions."""
        return list(self._groups)

    def get_rank(self):
        """Returns this rank."""
        return self._rank

    def get_local_rank(self, mesh_dim=None):
        """Returns this rank's place along a dimension."""
        return self.get_group(mesh_dim).rank()

    def get_coordinate(self):
        """Returns this rank's places along all dimensions, or None if it is not in the mesh."""
        flat = self.mesh.reshape(-1).tolist()
        if self._rank not in flat:
            return None
        place, found = flat.index(self._rank), []
        for extent in reversed(self.shape):
            found.append(place % extent)
            place //= extent
        return found[::-1]

    def __getitem__(self, names):
        if self.mesh_dim_names is None:
            raise RuntimeError("Cannot slice a DeviceMesh without mesh_dim_names!")
        names = (names,) if isinstance(names, str) else tuple(names)
        dims = [self._dim(name) for name in names]
        if names == self.mesh_dim_names:
            return self
        place, part = self.get_coordinate(), self.mesh
        for dim in sorted(set(range(self.ndim)) - set(dims), reverse=True):
            part = part.select(dim, place[dim])
        return DeviceMesh(self.device_type, part, mesh_dim_names=names, _groups=[self._groups[dim] for dim in dims], _rank=self._rank)

    def _flatten(self, mesh_dim_name=None):
        """Returns the mesh in one dimension."""
        name = mesh_dim_name or "_".join(self.mesh_dim_names or ())
        return DeviceMesh(self.device_type, self.mesh.reshape(-1), mesh_dim_names=(name,) if name else None, _rank=self._rank)

    def __eq__(self, other):
        return other is self or isinstance(other, DeviceMesh) and self._ranks == other._ranks and self.mesh_dim_names == other.mesh_dim_names

    def __hash__(self):
        return hash((str(self._ranks), self.mesh_dim_names))

    def __reduce__(self):
        return _of_file, (self.device_type, self._ranks, self.mesh_dim_names)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __repr__(self):
        names = f", mesh_dim_names={self.mesh_dim_names}" if self.mesh_dim_names else ""
        return f"DeviceMesh('{self.device_type}', {self._ranks}{names})"


def _of_file(device_type, ranks, names):
    """Returns a mesh that was written to a file. Every rank calls it."""
    return DeviceMesh(device_type, ranks, mesh_dim_names=names)


def init_device_mesh(device_type, mesh_shape, *, mesh_dim_names=None, backend_override=None):
    """Returns all ranks in rows and columns. Every rank calls it."""
    mesh_shape = tuple(mesh_shape)
    if mesh_dim_names is not None and (len(set(mesh_dim_names)) != len(mesh_dim_names) or len(mesh_dim_names) != len(mesh_shape)):
        raise RuntimeError(f"mesh_dim_names must be distinct and as many as mesh_shape has extents. Got mesh_dim_names={mesh_dim_names}, "
                           f"mesh_shape={mesh_shape}")
    made = _core.arange(math.prod(mesh_shape)).reshape(mesh_shape)
    if is_initialized() and made.numel() > get_world_size():
        raise RuntimeError(f"Mesh should not be bigger than default world size {get_world_size()}, but found {made.numel()} ranks!")
    return DeviceMesh(device_type, made, mesh_dim_names=mesh_dim_names)
