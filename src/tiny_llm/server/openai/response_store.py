"""Bounded in-memory store of responses, for `previous_response_id`."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..http.errors import ApiError, bad_request

Item = dict[str, Any]

MAX_STORED_BYTES = 2**28  # maximum size of all stored items as JSON
NOT_STORED = (
    "responses are not stored; send the whole conversation as input, or start the server with "
    "--response-store N"
)


@dataclass(frozen=True)
class StoredResponse:
    """A response with its conversation."""

    conversation: Sequence[Item]  # all items, including those of earlier responses
    new_items: Sequence[Item]  # the items that this response added
    num_bytes: int  # size of `new_items` as JSON


@dataclass(frozen=True)
class Conversation:
    """Items of a request's conversation."""

    items: list[Item]  # stored items, then the request's items with references resolved
    num_stored: int = 0  # number of leading items from the previous response's conversation


class ResponseStore:
    """The `capacity` most recently used responses, within `MAX_STORED_BYTES`."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        # By response id, least recently used first.
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        # By item id: the latest response that contains the item, and the item.
        self._items: dict[str, tuple[str, Item]] = {}
        self._num_bytes = 0

    @property
    def is_enabled(self) -> bool:
        """Whether responses are stored."""
        return self._capacity > 0

    def resolve(self, given: str | Sequence[Item], previous_id: str | None) -> Conversation:
        """Returns a request's conversation.

        Raises:
            ApiError: the store is disabled, or a referenced response or item is not in it.
        """
        stored: Sequence[Item] = []
        if previous_id is not None:
            stored = self._find_response(previous_id).conversation
        if isinstance(given, str):
            new = [{"type": "message", "role": "user", "content": given}]
        else:
            new = [
                self._find_item(item.get("id"), f"input[{number}]")
                if item.get("type") == "item_reference"
                else item
                for number, item in enumerate(given)
            ]
        return Conversation([*stored, *new], len(stored))

    def add(self, response_id: str, conversation: Conversation, output: Sequence[Item]) -> None:
        """Stores a response; evicts the least recently used ones beyond the limits."""
        new = [*conversation.items[conversation.num_stored :], *output]
        items = [*conversation.items, *output]
        response = StoredResponse(items, new, len(json.dumps(new)))
        self._responses[response_id] = response
        self._num_bytes += response.num_bytes
        self._items.update({str(item["id"]): (response_id, item) for item in new if "id" in item})
        while len(self._responses) > self._capacity or self._num_bytes > MAX_STORED_BYTES:
            self._evict()

    def _evict(self) -> None:
        response_id, response = self._responses.popitem(last=False)
        self._num_bytes -= response.num_bytes
        for item in response.new_items:
            owner, _ = self._items.get(str(item.get("id")), ("", None))
            if owner == response_id:
                del self._items[str(item["id"])]

    def _find_response(self, response_id: str) -> StoredResponse:
        param = "previous_response_id"
        if not self.is_enabled:
            raise bad_request(f"previous_response_id is not supported: {NOT_STORED}.", param)
        if response_id not in self._responses:
            raise bad_request(
                f"The previous response '{response_id[:60]}' is not stored; it may have been "
                "evicted. Send the whole conversation as input.",
                param,
                "previous_response_not_found",
            )
        self._responses.move_to_end(response_id)
        return self._responses[response_id]

    def _find_item(self, item_id: Any, path: str) -> Item:
        if not self.is_enabled:
            raise bad_request(f"{path} references a stored item: {NOT_STORED}.", path)
        if not isinstance(item_id, str):
            raise bad_request(f"{path}.id must be a string.", f"{path}.id")
        if item_id not in self._items:
            raise ApiError(
                404,
                f"{path} references the item '{item_id[:60]}', which is not stored; it may have "
                "been evicted. Send the item itself.",
                path,
            )
        return self._items[item_id][1]
