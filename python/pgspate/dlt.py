"""A destination of dlt: its `postgres`, but pgspate writes the Parquet files of a load.

Schema, staging and merge stay those of dlt. Only the jobs that load files are others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlt.common.destination import DestinationCapabilitiesContext
from dlt.common.destination.client import HasFollowupJobs, RunnableLoadJob
from dlt.common.storages.load_package import ParsedLoadJobFileName
from dlt.destinations.impl.postgres.factory import PostgresTypeMapper, postgres
from dlt.destinations.impl.postgres.postgres import PostgresClient

from .fleetjob import begin_write

if TYPE_CHECKING:
    from dlt.common.destination.client import LoadJob
    from dlt.common.destination.typing import PreparedTableSchema
    from dlt.common.schema import TColumnSchema

__all__ = ["pgspate"]


class ParquetLoadJob(RunnableLoadJob, HasFollowupJobs):
    """Loads a Parquet file into its table, in one transaction."""

    def __init__(self, file_path: str) -> None:
        super().__init__(file_path)
        self._job_client: Any = None

    def run(self) -> None:
        """Loads the file. dlt calls this in a thread, and repeats it after an error."""
        client = self._job_client
        table = client.sql_client.make_qualified_table_name(self.load_table_name)
        to = client.config.credentials.to_native_representation()
        # dlt empties tables before the first file of a load, and not again. So a file is added
        # unless an earlier attempt has added it, and only its answer was lost. The file's name has
        # the number of the attempt. The job's id does not.
        name = f"dlt load {self._load_id}, {self.job_id()}"
        ticket = begin_write(table, to=to, job=name, commit="task", stable_parts=True)
        if not ticket.is_complete:
            ticket.complete([ticket.write(0, self._file_path)])


class PgspateClient(PostgresClient):
    """dlt's client of PostgreSQL, with other jobs for Parquet files."""

    def create_load_job(
        self, table: PreparedTableSchema, file_path: str, load_id: str, restore: bool = False
    ) -> LoadJob:
        """Returns the job that loads a file."""
        if ParsedLoadJobFileName.parse(file_path).file_format == "parquet":
            return ParquetLoadJob(file_path)
        return super().create_load_job(table, file_path, load_id, restore)


class PgspateTypeMapper(PostgresTypeMapper):
    """dlt's types of PostgreSQL. JSON becomes jsonb, also if it comes in a Parquet file."""

    def to_destination_type(self, column: TColumnSchema, table: PreparedTableSchema) -> str:
        """Returns the type of a column."""
        if column["data_type"] == "json":
            return "jsonb"
        found: str = super().to_destination_type(column, table)
        return found


class pgspate(postgres):  # noqa: N801
    """The destination: ``dlt.pipeline(destination=pgspate.dlt.pgspate(credentials=...))``.

    The arguments are those of dlt's ``postgres``.
    """

    def _raw_capabilities(self) -> DestinationCapabilitiesContext:
        caps = super()._raw_capabilities()
        caps.preferred_loader_file_format = "parquet"
        # dlt's own choice of a format depends on ADBC. Its annotation has no None.
        no_selector: Any = None
        caps.loader_file_format_selector = no_selector
        caps.type_mapper = PgspateTypeMapper
        return caps

    @property
    def client_class(self) -> type[PgspateClient]:
        """The class of the client."""
        return PgspateClient
