"""What ``circle doctor`` looks at: the machine and what is installed, and whether it computes exactly."""

from circle.doctor.examination import Finding, examine, healthy

__all__ = ["Finding", "examine", "healthy"]
