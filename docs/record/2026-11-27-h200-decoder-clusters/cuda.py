"""NVRTC and the driver, by ctypes. Without a driver texts are compiled alone."""
import ctypes as C
import re

nvrtc = C.CDLL("libnvrtc.so.13")
try:
    cuda = C.CDLL("libcuda.so.1")
except OSError:
    cuda = None


def check(code, what=""):
    if code:
        raise RuntimeError(f"CUDA error {code} {what}")


def compiled(text):
    """The code of a text, and how many registers and spilled bytes it has."""
    program, size = C.c_void_p(), C.c_size_t()
    check(nvrtc.nvrtcCreateProgram(C.byref(program), text.encode(), b"printed.cu", 0, None, None))
    options = [b"--std=c++17", b"--fmad=false", b"-arch=sm_90", b"--ptxas-options=-v"]
    code = nvrtc.nvrtcCompileProgram(program, len(options), (C.c_char_p * len(options))(*options))
    nvrtc.nvrtcGetProgramLogSize(program, C.byref(size))
    log = C.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    log = log.value.decode()
    if code:
        raise RuntimeError(log)
    nvrtc.nvrtcGetCUBINSize(program, C.byref(size))
    cubin = C.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    used = [re.search(p, log) for p in (r"Used (\d+) registers", r"(\d+) bytes spill stores")]
    return cubin.raw, tuple(int(m.group(1)) if m else 0 for m in used)


class Config(C.Structure):
    _fields_ = [(name, C.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")]
    _fields_ += [("stream", C.c_void_p), ("attributes", C.c_void_p), ("count", C.c_uint)]


class Attribute(C.Structure):
    _fields_ = [("id", C.c_uint), ("pad", C.c_uint), ("value", C.c_uint * 16)]


COOPERATIVE, CLUSTER, PROGRAMMATIC = 2, 4, 6
MOST_SHARED, CLUSTERS_OF_SIXTEEN = 8, 14


class Function:
    """A kernel, with its shared memory and the blocks of a cluster where its text does not say."""

    def __init__(self, cubin, name, shared=0, cluster=0):
        self.module, self.function = C.c_void_p(), C.c_void_p()
        check(cuda.cuModuleLoadData(C.byref(self.module), cubin), "load")
        check(cuda.cuModuleGetFunction(C.byref(self.function), self.module, name.encode()), "function")
        self.shared, self.cluster = shared, cluster
        if shared > 48 << 10:
            check(cuda.cuFuncSetAttribute(self.function, MOST_SHARED, shared), "shared")
        if cluster > 8:
            check(cuda.cuFuncSetAttribute(self.function, CLUSTERS_OF_SIXTEEN, 1), "clusters")

    def config(self, grid, block, stream, cooperative, programmatic):
        values = [(COOPERATIVE, [1])] if cooperative else []
        values += [(CLUSTER, [self.cluster, 1, 1])] if self.cluster > 1 else []
        values += [(PROGRAMMATIC, [1])] if programmatic else []
        attributes = (Attribute * 3)()
        for attribute, (number, value) in zip(attributes, values):
            attribute.id = number
            attribute.value[: len(value)] = value
        self.attributes = attributes
        at = C.cast(attributes, C.c_void_p)
        return Config(grid, 1, 1, block, 1, 1, self.shared, stream, at, len(values))

    def launcher(self, words, grid, block, stream=0, cooperative=False, programmatic=False):
        """A call that launches the kernel with one argument of these words of 8 bytes."""
        packed = (C.c_uint64 * len(words))(*words)
        pointer = (C.c_void_p * 1)(C.cast(packed, C.c_void_p))
        config = self.config(grid, block, stream, cooperative, programmatic)
        kept = (packed, self.attributes)
        return lambda kept=kept: check(cuda.cuLaunchKernelEx(C.byref(config), self.function, pointer, None), "launch")

    def most_clusters(self, grid, block):
        """How many clusters the GPU holds at once."""
        config, count = self.config(grid, block, 0, False, False), C.c_int()
        check(cuda.cuOccupancyMaxActiveClusters(C.byref(count), self.function, C.byref(config)), "clusters")
        return count.value
