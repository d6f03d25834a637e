"""Times that groups wait (`torch.distributed.constants`)."""

import datetime

default_pg_timeout = datetime.timedelta(minutes=30)
default_pg_nccl_timeout = datetime.timedelta(minutes=10)
