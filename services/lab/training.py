"""Trains the model of ``forecast`` by Spark, on what its actor knew when each aircraft departed.

python -m services.lab.training points LEGS POINTS.parquet             # the moments to ask for: tailrace export --at
python -m services.lab.training fit ROWS UNTIL VERSION.json PREDICTIONS
"""

from __future__ import annotations

import sys
from math import sqrt
from pathlib import Path
from typing import Any

import duckdb
from pyspark.ml import Pipeline
from pyspark.ml.feature import PolynomialExpansion, StandardScaler, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame

from services.lab.model import Model, write
from tailrace.spark import session

FEATURES = ("departure_delay", "duration", "last_delay", "caught_up")
LABEL = "arrival_delay"

POINTS = """
    select
        tail as key,
        departed - interval 1 millisecond as time,  -- what was known before the departure
        carrier, flight, departure_delay, arrival_delay,
        date_diff('minute', departed, arrived) - arrival_delay + departure_delay as duration
    from read_parquet($legs || '/*/*/*.parquet')
    order by time, key, flight
"""


def points(legs: str, file: str) -> None:
    """Write a row for each leg: its aircraft, the moment before it departed, what the departure says, and the label."""
    with duckdb.connect() as db:
        db.execute(f"copy ({POINTS}) to '{file}' (format parquet)", {"legs": legs})


def fit(export: str, until: str, file: str, predictions: str) -> None:
    """Train on the rows before a time, and write the model and its predictions for all rows."""
    rows = session().read.parquet(f"{export}/Aircraft").fillna(0)  # an aircraft without a past has nulls
    pipeline: Any = Pipeline(  # PySpark declares too little of what is fitted
        stages=[
            VectorAssembler(inputCols=[*FEATURES], outputCol="given"),
            StandardScaler(inputCol="given", outputCol="scaled", withMean=True),
            PolynomialExpansion(degree=2, inputCol="scaled", outputCol="terms"),
            LinearRegression(featuresCol="terms", labelCol=LABEL, regParam=0.1, solver="normal"),
        ]
    )
    fitted = pipeline.fit(rows.where(rows.time < until))
    digest = write(model_of(fitted, Path(file).stem), Path(file))
    predicted = fitted.transform(rows)
    later = predicted.where(rows.time >= until)
    print(f"{file}: digest {digest}")
    print(
        f"from {until} on, forecasts are off by {error(later, 'prediction'):.1f} minutes (root mean square),"
    )
    print(
        f"and by {error(later, 'departure_delay'):.1f} if each leg is expected to arrive as late as it departed"
    )
    predicted.select("key", "time", "flight", *FEATURES, "prediction").write.parquet(predictions)


def model_of(fitted: Any, version: str) -> Model:
    """The numbers of a trained pipeline."""
    _, scaler, _, regression = fitted.stages
    return Model(
        version=version,
        features=FEATURES,
        means=tuple(map(float, scaler.mean)),
        deviations=tuple(map(float, scaler.std)),
        coefficients=tuple(map(float, regression.coefficients)),
        intercept=float(regression.intercept),
    )


def error(rows: DataFrame, column: str) -> float:
    """The root of the mean square error of a column of forecasts."""
    mean: Any = rows.selectExpr(f"avg(pow({column} - {LABEL}, 2))").first()
    return sqrt(mean[0])


def main(command: str, *arguments: str) -> int:
    """Run one of the two commands."""
    (points if command == "points" else fit)(*arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
