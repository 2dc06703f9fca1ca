"""A streaming query that is killed at any moment: `python stream_driver.py DSN FOLDER`."""

from __future__ import annotations

import sys

from conftest import SPARK_SETTINGS
from pyspark.sql import SparkSession

if __name__ == "__main__":
    dsn, folder = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in SPARK_SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).csv(f"{folder}/in")
    # A repeated epoch has its rows in other parts.
    query = (
        frame.repartition(3).writeStream.format("pgspate").option("url", dsn)
        .option("dbtable", "t").option("stream", "orders")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    spark.stop()
