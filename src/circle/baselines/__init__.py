"""Methods that CIRCLE is compared with."""

from circle.baselines.acil import ACIL, ACILConfig
from circle.baselines.adagauss import AdaGauss, AdaGaussConfig
from circle.baselines.adc import ADC, ADCConfig
from circle.baselines.dsal import DSAL, DSALConfig
from circle.baselines.efc_plus_plus import EFCPlusPlus, EFCPlusPlusConfig
from circle.baselines.fecam import FeCAM, FeCAMConfig
from circle.baselines.fetril import FeTrIL, FeTrILConfig
from circle.baselines.finetune import FineTune, FineTuneConfig
from circle.baselines.il2a import IL2A, IL2AConfig
from circle.baselines.lwf import LwF, LwFConfig
from circle.baselines.pass_method import PASS, PASSConfig

__all__ = [
    "ACIL",
    "ADC",
    "DSAL",
    "IL2A",
    "PASS",
    "ACILConfig",
    "ADCConfig",
    "AdaGauss",
    "AdaGaussConfig",
    "DSALConfig",
    "EFCPlusPlus",
    "EFCPlusPlusConfig",
    "FeCAM",
    "FeCAMConfig",
    "FeTrIL",
    "FeTrILConfig",
    "FineTune",
    "FineTuneConfig",
    "IL2AConfig",
    "LwF",
    "LwFConfig",
    "PASSConfig",
]
