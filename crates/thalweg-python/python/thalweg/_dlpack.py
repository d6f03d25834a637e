"""DLPack."""

def from_dlpack(*args, **kwargs):
    raise NotImplementedError
def to_dlpack(*args, **kwargs):
    raise NotImplementedError
