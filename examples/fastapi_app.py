"""Stores one record per request with FastAPI: `python fastapi_app.py`.

Needs `fastapi`, `uvicorn` and `psycopg`. Run as a program, this file starts a temporary server and
the app, at http://127.0.0.1:8000/docs. With `--try`, it sends requests from 64 threads instead, and
prints what the writer has done. `uvicorn fastapi_app:app` runs the app with the server that
`DATABASE_URL` names, which has the table below.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from typing import Any

import fastapi
import pgspate
import pgspate.aio
import psycopg
import uvicorn
from pydantic import BaseModel

TABLE = """
create table if not exists accounts (
    id bigint generated always as identity primary key,
    email text not null unique,
    opened timestamptz not null default now()
)"""


class NewAccount(BaseModel):
    email: str


@asynccontextmanager
async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
    to = os.environ["DATABASE_URL"]
    async with pgspate.aio.Writer("accounts", to=to, returning=["id", "opened"]) as writer:
        app.state.writer = writer
        yield


app = fastapi.FastAPI(lifespan=lifespan)


@app.post("/accounts", status_code=201)
async def open_account(account: NewAccount) -> dict[str, Any]:
    try:
        return await app.state.writer.insert(account.model_dump())
    except pgspate.ServerError as error:
        status = 409 if error.sqlstate == "23505" else 400
        raise fastapi.HTTPException(status, str(error)) from None


@app.get("/writer")
async def writer_report() -> dict[str, Any]:
    return app.state.writer.report().to_dict()


def post(connection: HTTPConnection, email: str) -> int:
    body = json.dumps({"email": email})
    connection.request("POST", "/accounts", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    return response.status


def send(port: int, thread: int) -> list[int]:
    """Sends the requests of one thread, each after the answer to the one before."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    statuses = [post(connection, f"{thread}.{n}@example.org") for n in range(8)]
    connection.close()
    return statuses


async def serve(is_trial: bool) -> None:
    config = uvicorn.Config(app, port=0 if is_trial else 8000, log_level="warning")
    web = uvicorn.Server(config)
    serving = asyncio.ensure_future(web.serve())
    if is_trial:
        while not web.started and not serving.done():
            await asyncio.sleep(0.01)
        port = web.servers[0].sockets[0].getsockname()[1]
        await asyncio.to_thread(try_it, port)
        web.should_exit = True
    await serving


def try_it(port: int) -> None:
    with ThreadPoolExecutor(64) as pool:
        statuses = [one for each in pool.map(send, [port] * 64, range(64)) for one in each]
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    # The table has this e-mail address.
    statuses.append(post(connection, "0.0@example.org"))
    stored, refused = statuses.count(201), statuses.count(409)
    print(f"{stored} of {len(statuses)} requests stored, {refused} refused")
    connection.request("GET", "/writer")
    print(connection.getresponse().read().decode())
    connection.close()


if __name__ == "__main__":
    with pgspate.server(temporary=True) as server:
        with psycopg.connect(server.url) as database:
            database.execute(TABLE)
        os.environ["DATABASE_URL"] = server.url
        asyncio.run(serve(is_trial="--try" in sys.argv))
