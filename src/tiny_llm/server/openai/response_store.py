"""Bounded in-memory store of responses, for `previous_response_id`."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..http.errors import ApiError, bad_request, to_json

Item = dict[str, Any]

MAX_STORED_BYTES = 2**28  # of all stored conversations, each counted as a whole
ITEM_BYTES = 200  # memory of a stored item, besides its JSON
NOT_STORED = (
    "responses are not stored; send the whole conversation as input, or start the server with "
    "--response-store N"
)


@dataclass(frozen=True, slots=True)
class StoredItem:
    """An item as JSON, whose memory is known, unlike that of Python objects."""

    data: bytes
    id: str | None  # None for a client's item: clients may choose the same ids

    @property
    def num_bytes(self) -> int:
        return len(self.data) + ITEM_BYTES


@dataclass(frozen=True)
class Conversation:
    """Items of a request's conversation: the previous response's, then the request's."""

    stored: Sequence[StoredItem]
    new: Sequence[Item | StoredItem]  # stored items replace references

    def items(self) -> list[Item]:
        return [
            json.loads(item.data) if isinstance(item, StoredItem) else item
            for item in (*self.stored, *self.new)
        ]


class ResponseStore:
    """The `capacity` most recently used responses, within `MAX_STORED_BYTES`."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        # Conversations by response id, least recently used first.
        self._responses: OrderedDict[str, Sequence[StoredItem]] = OrderedDict()
        # By item id: the latest response that contains the item, and the item.
        self._items: dict[str, tuple[str, StoredItem]] = {}
        self._num_bytes = 0

    @property
    def is_enabled(self) -> bool:
        return self._capacity > 0

    def resolve(
        self,
        given: str | Sequence[Item],
        previous_id: str | None,
        max_bytes: int = MAX_STORED_BYTES,
    ) -> Conversation:
        """Returns a request's conversation; `max_bytes` limits its stored items."""
        stored: Sequence[StoredItem] = []
        if previous_id is not None:
            stored = self._find_response(previous_id)
        new: Sequence[Item | StoredItem]
        if isinstance(given, str):
            new = [{"type": "message", "role": "user", "content": given}]
        else:
            new = [
                self._find_item(item.get("id"), f"input[{number}]")
                if item.get("type") == "item_reference"
                else item
                for number, item in enumerate(given)
            ]
        num_bytes = _num_bytes([*stored, *(item for item in new if isinstance(item, StoredItem))])
        if num_bytes > max_bytes:
            raise bad_request(
                f"The stored items that the request refers to have {num_bytes} bytes, but a "
                f"request may have {max_bytes}; start a new conversation, or send a shorter one "
                "as input.",
                "input",
            )
        return Conversation(stored, new)

    def add(self, response_id: str, conversation: Conversation, output: Sequence[Item]) -> None:
        """Stores a response; evicts the least recently used ones beyond the limits."""
        items = [
            *conversation.stored,
            *(
                item if isinstance(item, StoredItem) else StoredItem(to_json(item), None)
                for item in conversation.new
            ),
            *(StoredItem(to_json(item), item.get("id")) for item in output),
        ]
        self._responses[response_id] = items
        self._num_bytes += _num_bytes(items)
        self._items.update({item.id: (response_id, item) for item in items if item.id})
        while len(self._responses) > self._capacity or self._num_bytes > MAX_STORED_BYTES:
            evicted_id, evicted = self._responses.popitem(last=False)
            self._num_bytes -= _num_bytes(evicted)
            for item in evicted:
                if item.id and self._items.get(item.id, ("", item))[0] == evicted_id:
                    del self._items[item.id]

    def _find_response(self, response_id: str) -> Sequence[StoredItem]:
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

    def _find_item(self, item_id: Any, path: str) -> StoredItem:
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


def _num_bytes(items: Sequence[StoredItem]) -> int:
    return sum(item.num_bytes for item in items)
