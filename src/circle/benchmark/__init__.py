"""Class-incremental benchmark: protocol, methods, metrics, reports and plots."""
