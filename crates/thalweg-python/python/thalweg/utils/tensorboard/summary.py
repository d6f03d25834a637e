"""Messages of TensorBoard's event files (`torch.utils.tensorboard.summary`)."""

from ..._left_out import attributes as _attributes


def scalar(name, tensor, collections=None, new_style=False, double_precision=False):
    """Returns the summary of a number."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    return Summary(value=[Summary.Value(tag=name, simple_value=float(tensor))])


def hparams(hparam_dict=None, metric_dict=None, hparam_domain_discrete=None):
    """Returns the three summaries by which TensorBoard shows hyperparameters beside metrics: the experiment, the start and the end of its session."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
    for what, given in (("hparam_dict", hparam_dict), ("metric_dict", metric_dict)):
        if not isinstance(given, dict):
            raise TypeError(f"{what} should be a dictionary, nothing logged.")
    domains, start, infos = hparam_domain_discrete or {}, plugin_data_pb2.SessionStartInfo(), []
    for name, value in hparam_dict.items():
        if value is None:
            continue
        value = value.item() if hasattr(value, "item") else value
        kind = "float64" if isinstance(value, (int, float)) else "string" if isinstance(value, str) else None
        if kind is None:
            raise ValueError("value should be one of int, float, str, bool, or torch.Tensor")
        field = {"float64": "number_value", "string": "string_value"}[kind]
        setattr(start.hparams[name], field, value)
        infos.append(api_pb2.HParamInfo(name=name, type=api_pb2.DataType.Value(f"DATA_TYPE_{kind.upper()}")))
        for choice in domains.get(name, ()):
            setattr(infos[-1].domain_discrete.values.add(), field, choice)
    experiment = api_pb2.Experiment(hparam_infos=infos, metric_infos=[
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=name)) for name in metric_dict])
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.Status.Value("STATUS_SUCCESS"))

    def summary(tag, **content):
        data = plugin_data_pb2.HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **content)
        plugin = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString())
        return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))])
    return (summary(metadata.EXPERIMENT_TAG, experiment=experiment), summary(metadata.SESSION_START_INFO_TAG, session_start_info=start),
            summary(metadata.SESSION_END_INFO_TAG, session_end_info=end))


__getattr__ = _attributes(__name__)
