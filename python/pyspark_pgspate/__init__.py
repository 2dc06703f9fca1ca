"""Makes `df.write.format("pgspate")` known to Spark 4, which looks for modules of such a name."""

from pgspate._spark_source import DefaultSource

__all__ = ["DefaultSource"]
