"""`torch.onnx`, whose functions are left out: the module is there because programs import it whether or not they export."""


def __getattr__(name):
    raise AttributeError(f"thalweg.onnx.{name} is left out: it needs traced programs")
