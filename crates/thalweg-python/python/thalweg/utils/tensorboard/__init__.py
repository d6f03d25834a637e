"""Summaries for TensorBoard (`torch.utils.tensorboard`), written with the package `tensorboard`, which must be installed."""

import importlib.util
import os
import time


def _messages():
    """Returns the classes of the package's messages."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    return Event, HistogramProto, Summary, SummaryMetadata, TensorProto, TensorShapeProto


def _number(value):
    return float(value.item() if hasattr(value, "item") else value)


def _array(values):
    import numpy
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return numpy.asarray(values)


class _FileWriter:
    """An event file."""

    def __init__(self, log_dir, max_queue=10, flush_secs=120, filename_suffix=""):
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self.event_writer = EventFileWriter(str(log_dir), max_queue, flush_secs, filename_suffix)

    def get_logdir(self):
        """Returns the folder of the event file."""
        return self.event_writer.get_logdir()

    def add_summary(self, summary, global_step=None, walltime=None):
        """Adds a summary."""
        event = _messages()[0](wall_time=time.time() if walltime is None else walltime, summary=summary)
        if global_step is not None:
            event.step = int(_number(global_step))
        self.event_writer.add_event(event)

    def flush(self):
        """Writes all values that have been added."""
        self.event_writer.flush()

    def close(self):
        """Writes all values that have been added, and closes the file or files."""
        self.event_writer.close()


class _SummaryWriter:
    """Writes scalars, histograms, texts and pictures to a folder that TensorBoard reads."""

    def __init__(self, log_dir=None, comment="", purge_step=None, max_queue=10, flush_secs=120, filename_suffix=""):
        if not log_dir:
            import datetime
            import socket
            log_dir = os.path.join("runs", f"{datetime.datetime.now():%b%d_%H-%M-%S}_{socket.gethostname()}{comment}")
        self.log_dir, self._options, self._writers = str(log_dir), (max_queue, flush_secs, filename_suffix), {}
        self.file_writer = self._writer(self.log_dir)

    def _writer(self, folder):
        if folder not in self._writers:
            self._writers[folder] = _FileWriter(folder, *self._options)
        return self._writers[folder]

    def get_logdir(self):
        """Returns the folder."""
        return self.log_dir

    def _add(self, tag, global_step, walltime, folder=None, **value):
        Summary = _messages()[2]
        summary = Summary(value=[Summary.Value(tag=tag, **value)])
        self._writer(folder or self.log_dir).add_summary(summary, global_step, walltime)

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False):
        """Adds a number."""
        self._add(tag, global_step, walltime, simple_value=_number(scalar_value))

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        """Adds numbers, each as a separate run."""
        for tag, value in tag_scalar_dict.items():
            folder = os.path.join(self.log_dir, main_tag.replace("/", "_") + "_" + tag)
            self._add(main_tag, global_step, walltime, folder, simple_value=_number(value))

    def add_histogram(self, tag, values, global_step=None, bins="tensorflow", walltime=None, max_bins=None):
        """Adds the distribution of numbers."""
        import numpy
        HistogramProto = _messages()[1]
        array = _array(values).astype(numpy.float64).ravel()
        if not array.size:
            raise ValueError("The input has no element.")
        counts, limits = numpy.histogram(array, bins=bins if isinstance(bins, (int, list)) else 30)
        proto = HistogramProto(min=array.min(), max=array.max(), num=array.size, sum=array.sum(), sum_squares=(array * array).sum(),
                               bucket_limit=limits[1:].tolist(), bucket=counts.tolist())
        self._add(tag, global_step, walltime, histo=proto)

    def add_text(self, tag, text_string, global_step=None, walltime=None):
        """Adds a text."""
        SummaryMetadata, TensorProto, TensorShapeProto = _messages()[3:]
        tensor = TensorProto(dtype="DT_STRING", string_val=[text_string.encode()], tensor_shape=TensorShapeProto(
            dim=[TensorShapeProto.Dim(size=1)]))
        data = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(f"{tag}/text_summary", global_step, walltime, metadata=data, tensor=tensor)

    def add_image(self, tag, img_tensor, global_step=None, walltime=None, dataformats="CHW"):
        """Adds a picture, of floats from 0 to 1 or of bytes."""
        import io

        import numpy
        from PIL import Image
        array = _array(img_tensor) if hasattr(img_tensor, "detach") else numpy.asarray(img_tensor)
        order = [dataformats.upper().index(letter) for letter in "HWC" if letter in dataformats.upper()]
        array = array.transpose(order)
        is_bytes = getattr(getattr(img_tensor, "dtype", None), "_name", str(getattr(img_tensor, "dtype", ""))) == "uint8"
        array = (array if is_bytes else array * 255.0).clip(0, 255).astype(numpy.uint8)
        if array.ndim == 2:
            array = numpy.stack([array] * 3, axis=2)
        elif array.shape[2] == 1:
            array = numpy.concatenate([array] * 3, axis=2)
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, format="PNG")
        image = _messages()[2].Image(height=array.shape[0], width=array.shape[1], colorspace=array.shape[2], encoded_image_string=buffer.getvalue())
        self._add(tag, global_step, walltime, image=image)

    def add_images(self, tag, img_tensor, global_step=None, walltime=None, dataformats="NCHW"):
        """Adds several pictures next to each other."""
        import numpy
        array = _array(img_tensor)
        order = [dataformats.upper().index(letter) for letter in "NHWC"]
        row = numpy.concatenate(list(array.transpose(order)), axis=1)
        self.add_image(tag, row.astype(numpy.uint8) if array.max() > 1.0 else row, global_step, walltime, "HWC")

    def add_hparams(self, hparam_dict, metric_dict, hparam_domain_discrete=None, run_name=None, global_step=None):
        """Adds hyperparameters and metrics, as a run of their own."""
        from .summary import hparams
        folder = os.path.join(self.log_dir, run_name or str(time.time()))
        for summary in hparams(hparam_dict, metric_dict, hparam_domain_discrete):
            self._writer(folder).add_summary(summary)
        for name, value in metric_dict.items():
            self._add(name, global_step, None, folder, simple_value=_number(value))

    def _get_file_writer(self):
        """Returns the event file of the folder, which is opened again after `close`."""
        self.file_writer = self._writer(self.log_dir)
        return self.file_writer

    def add_figure(self, tag, figure, global_step=None, close=True, walltime=None):
        """Adds a figure of matplotlib."""
        import numpy
        for number, one in enumerate(figure if isinstance(figure, list) else [figure]):
            one.canvas.draw()
            picture = numpy.asarray(one.canvas.buffer_rgba())[..., :3] / 255.0
            self.add_image(tag if number == 0 else f"{tag}/{number}", picture, global_step, walltime, "HWC")

    def add_graph(self, model, input_to_model=None, verbose=False, use_strict_trace=True):
        """Raises: programs are not traced."""
        raise NotImplementedError("SummaryWriter.add_graph is left out: programs run eagerly")

    def flush(self):
        """Writes all values that have been added."""
        for writer in self._writers.values():
            writer.flush()

    def close(self):
        """Writes all values that have been added, and closes the file or files."""
        while self._writers:
            self._writers.popitem()[1].close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


_NAMES = {"SummaryWriter": _SummaryWriter, "FileWriter": _FileWriter}
for _name, _class in _NAMES.items():
    _class.__name__ = _class.__qualname__ = _name


def __getattr__(name):
    if name in _NAMES:
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError("utils.tensorboard needs the package tensorboard: pip install tensorboard")
        return _NAMES[name]
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
