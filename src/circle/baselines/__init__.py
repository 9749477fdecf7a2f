"""Methods that CIRCLE is compared with."""

from circle.baselines.acil import ACIL, ACILConfig
from circle.baselines.dsal import DSAL, DSALConfig
from circle.baselines.fecam import FeCAM, FeCAMConfig
from circle.baselines.fetril import FeTrIL, FeTrILConfig
from circle.baselines.finetune import FineTune, FineTuneConfig
from circle.baselines.lwf import LwF, LwFConfig

__all__ = [
    "ACIL",
    "DSAL",
    "ACILConfig",
    "DSALConfig",
    "FeCAM",
    "FeCAMConfig",
    "FeTrIL",
    "FeTrILConfig",
    "FineTune",
    "FineTuneConfig",
    "LwF",
    "LwFConfig",
]
