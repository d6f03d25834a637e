"""Settings of traces (`torch.fx.config`)."""

# Whether functions of tensors check their arguments while they are traced.
disable_progress = True
verbose_progress = False
