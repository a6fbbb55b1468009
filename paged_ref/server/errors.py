"""Errors as OpenAI's clients expect them: a status code and an object with message, type, param and code."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An error with an HTTP status.

    Args:
        status: the HTTP status code.
        message: one sentence for the client.
        param: the field of the request that is wrong, if one is.
        code: a short name that programs can compare.
        retry_after: seconds after which the client may try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after = retry_after

    @property
    def kind(self) -> str:
        """The error's type in OpenAI's terms."""
        if self.status == 429:
            return "rate_limit_error"
        if self.status == 401:
            return "authentication_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        """Return the JSON object to send."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        """Return the headers to send."""
        headers = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return headers | ({"www-authenticate": "Bearer"} if self.status == 401 else {})
