"""What ``circle doctor`` looks at: the machine and what is installed, and whether it computes exactly."""

from circle.doctor.examination import examine, healthy
from circle.doctor.finding import Finding

__all__ = ["Finding", "examine", "healthy"]
