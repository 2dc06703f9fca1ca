"""Writes by Spark's own JDBC writer: `python jdbc_driver.py JAR URL USER`."""

from __future__ import annotations

import sys

from conftest import SPARK_SETTINGS
from pyspark.sql import SparkSession

if __name__ == "__main__":
    jar, url, user = sys.argv[1:]
    # A task has four attempts, as on a cluster.
    builder = SparkSession.builder.master("local[2,4]").config("spark.jars", jar)
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    options = {"url": url, "dbtable": "t", "user": user, "driver": "org.postgresql.Driver"}
    spark.range(0, 8000, 1, 8).write.format("jdbc").options(**options).mode("append").save()
    spark.stop()
