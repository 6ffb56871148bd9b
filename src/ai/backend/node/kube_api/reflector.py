"""Keeps a copy of the objects of one kind current: lists all, watches changes, and lists all again where necessary."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Generic

from ai.backend.common.errors import BackendError, DeadlineExceeded
from ai.backend.node.kube_api.client import KubeApi, path_of, selector_query
from ai.backend.node.kube_api.decoding import Undecodable
from ai.backend.node.kube_api.errors import NotServed, ObjectInvalid, VersionExpired
from ai.backend.node.kube_api.resources import ObjectT, Resource
from ai.backend.node.kube_api.watching import INITIAL_EVENTS_END, WatchDecoder

log = logging.getLogger(__name__)
SILENCE_S = 90.0
"""The seconds of silence after which a watch counts as dead. Bookmarks come about once a minute."""
_LIST_SILENCE_S = 30.0
"""The seconds of silence after which a streamed list is given up: a server whose watch cache is not ready sends
none.
"""
_MIN_WATCH_S, _MAX_WATCH_S = 300, 600
"""The server ends a watch after so many seconds, at random so that not all watches end together."""
_STREAMED_LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
Key = tuple[str, str]


class Reflector(Generic[ObjectT]):
    """Mirrors the objects of a kind that match the selectors.

    ``run`` keeps the copy current until it is cancelled, and survives every failure of the server. It streams the
    present objects where the server can (WatchList), else, or where the stream stays silent, it lists them. The copy
    keeps what it has while the server is away; ``age_s`` tells for how long nothing was heard. An object that was
    replaced by another of its name is removed and then added. ``on_change`` gets each object before and after a change,
    None before its creation and after its removal, in order and in the event loop; what it raises is logged.

    An object that does not fit the projection is logged once for each of its versions, and is among ``undecodable``
    until it fits or is removed; all others go on. With ``keeps_last`` the copy keeps it as it was when it last fitted,
    which is right where an object that vanishes would free what it holds. Without, and if it never fitted, it is
    absent, which is right for what gives permission. ``on_undecodable`` gets its key when it becomes one of them,
    changes as one, or is none any more.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: Resource[ObjectT],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        on_change: Callable[[ObjectT | None, ObjectT | None], None] | None = None,
        on_undecodable: Callable[[Key], None] | None = None,
        keeps_last: bool = True,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._labels, self._fields = label_selector, field_selector
        self._on_change, self._on_undecodable, self._keeps_last = on_change, on_undecodable, keeps_last
        self._silence_s = silence_s
        self._delays = api.delays()
        self._objects: dict[Key, ObjectT] = {}
        self._undecodable: dict[Key, Undecodable] = {}
        self._version = ""
        self._answered_at = float("-inf")
        self._is_streaming = True
        self._rng = random.Random()  # spreads the ends of watches
        self.synced = asyncio.Event()
        """An event that is set once the copy was complete for the first time."""
        self.lists = 0
        """The number of times that all objects were read. It grows only where the server has forgotten the watched
        version.
        """
        self.failure: str = ""
        """The reason of the last failed attempt; empty while a watch is open."""

    @property
    def objects(self) -> Mapping[Key, ObjectT]:
        """The present objects by namespace and name."""
        return MappingProxyType(self._objects)

    @property
    def undecodable(self) -> Mapping[Key, Undecodable]:
        """The present objects that do not fit the projection, by namespace and name."""
        return MappingProxyType(self._undecodable)

    def get(self, name: str, namespace: str = "") -> ObjectT | None:
        return self._objects.get((namespace, name))

    @property
    def age_s(self) -> float:
        """The seconds since the server last sent anything; infinite before the first time."""
        return asyncio.get_running_loop().time() - self._answered_at

    async def run(self) -> None:
        """Keeps the copy current until cancelled."""
        while True:
            try:
                if not self._version and not self._is_streaming:
                    await self._list()
                if await self._follow():
                    continue
                self.failure = "the server ended a watch at once"
            except VersionExpired as e:
                log.info("%s are listed anew: %s", self._resource, e)
                self._version, self.failure = "", str(e)
            except (ObjectInvalid, NotServed) as e:
                if not self._is_streaming:
                    log.warning("%s cannot be watched: %s", self._resource, e)
                self._is_streaming, self.failure = False, str(e)
            except DeadlineExceeded as e:
                log.warning("the watch of %s is silent: %s", self._resource, e)
                self.failure = str(e)
                if not self._version:  # the silent stream was to be the list
                    self._is_streaming = False
            except Exception as e:
                self.failure = str(e)
                log.warning("the watch of %s failed: %s", self._resource, e, exc_info=not isinstance(e, BackendError))
            await self._delays.wait()

    async def _list(self) -> None:
        """Reads all objects, and stores the list's version, at which the watch then begins."""
        listed_objects, version = await self._api.list_readable(
            self._resource, self._namespace, label_selector=self._labels, field_selector=self._fields
        )
        self.replace(listed_objects, version)

    async def _follow(self) -> bool:
        """Follows the changes since ``_version`` until the server ends the watch. Without a version the server first
        sends all present objects. Returns False if it said nothing at all. Raises DeadlineExceeded for a list that
        stays silent.
        """
        listed_objects: dict[Key, ObjectT | Undecodable] | None = None if self._version else {}
        is_answered = False
        loop_time = asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(None if listed_objects is None else _LIST_SILENCE_S) as list_timeout,
                aclosing(self._events()) as events,
            ):
                async for event in events:
                    is_answered = True
                    self._record_answer()
                    if listed_objects is None:
                        self._apply_change(event.type, event.object)
                    elif self._is_listed(event, listed_objects):
                        self.replace(listed_objects.values(), event.object.metadata.resource_version)
                        listed_objects = None
                        list_timeout.reschedule(None)
                    else:
                        list_timeout.reschedule(loop_time() + _LIST_SILENCE_S)
        except TimeoutError:
            raise DeadlineExceeded(f"the streamed list said nothing for {_LIST_SILENCE_S:g} s") from None
        return is_answered and listed_objects is None

    @staticmethod
    def _is_listed(event: Any, listed_objects: dict[Key, ObjectT | Undecodable]) -> bool:
        """Adds an event of a streamed list to ``listed_objects``. Returns True for the event that ends the list."""
        if event.type == "BOOKMARK":
            return bool(event.object.metadata.annotations.get(INITIAL_EVENTS_END) == "true")
        if event.type == "DELETED":
            listed_objects.pop(event.object.key, None)
        else:
            listed_objects[event.object.key] = event.object
        return False

    async def _events(self) -> AsyncGenerator[Any, None]:
        start_query = {"resourceVersion": self._version} if self._version else _STREAMED_LIST
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._rng.randint(_MIN_WATCH_S, _MAX_WATCH_S)),
            **selector_query(self._labels, self._fields),
            **start_query,
        }
        decoder = WatchDecoder(self._resource.type)
        path = path_of(self._resource, self._namespace)
        async with self._api.stream(path, query, silence_s=self._silence_s) as chunks:
            async for chunk in chunks:
                for event in decoder.feed(chunk):
                    yield event

    def _record_answer(self) -> None:
        self._answered_at = asyncio.get_running_loop().time()
        self._delays.reset()
        self.failure = ""

    def replace(self, listed_objects: Iterable[ObjectT | Undecodable], version: str) -> None:
        previous_objects, present_objects = self._objects, dict[Key, ObjectT]()
        undecodable: dict[Key, Undecodable] = {}
        for obj in listed_objects:
            if isinstance(obj, Undecodable):
                undecodable[obj.key] = obj
                if (kept_object := self._keep_last(obj)) is not None:
                    present_objects[obj.key] = kept_object
            else:
                present_objects[obj.key] = obj
        self._objects = present_objects
        self._version = version
        self.lists += 1
        self._record_answer()
        for key, previous_object in previous_objects.items():
            if key not in self._objects:
                self._notify(previous_object, None)
        for key, present_object in list(self._objects.items()):
            old_object = previous_objects.get(key)
            if old_object is None or old_object.metadata.resource_version != present_object.metadata.resource_version:
                self._notify(old_object, present_object)
        for key in self._undecodable.keys() | undecodable.keys():
            self._record_undecodable(key, undecodable.get(key))
        self.synced.set()

    def _apply_change(self, kind: str, obj: ObjectT | Undecodable) -> None:
        self._version = obj.metadata.resource_version or self._version
        old_object = self._objects.get(obj.key)
        if kind not in ("ADDED", "MODIFIED", "DELETED"):
            return
        if isinstance(obj, Undecodable):
            if old_object is not None and (kind == "DELETED" or self._keep_last(obj) is None):
                del self._objects[obj.key]
                self._notify(old_object, None)
        elif kind == "DELETED":
            self._objects.pop(obj.key, None)
            self._notify(obj, None)
        else:
            self._objects[obj.key] = obj
            self._notify(old_object, obj)
        self._record_undecodable(obj.key, obj if isinstance(obj, Undecodable) and kind != "DELETED" else None)

    def _keep_last(self, obj: Undecodable) -> ObjectT | None:
        """Returns the last decoded version of an object whose new version cannot be decoded, or None.

        Returns None if none is stored, or the copy does not keep such objects.
        """
        last_object = self._objects.get(obj.key) if self._keeps_last else None
        return last_object if last_object is not None and last_object.metadata.uid == obj.metadata.uid else None

    def _record_undecodable(self, key: Key, obj: Undecodable | None) -> None:
        old_undecodable = self._undecodable.pop(key, None)
        if obj is not None:
            self._undecodable[key] = obj
        if obj is not None and (
            old_undecodable is None or old_undecodable.metadata.resource_version != obj.metadata.resource_version
        ):
            treatment_text = "stays as it was" if key in self._objects else "is absent"
            object_name, version = "/".join(filter(None, key)), obj.metadata.resource_version
            log.warning(
                "%s %s cannot be read in version %s, and %s here: %.500r",
                *(self._resource, object_name, version, treatment_text, obj.problem),
            )
        if obj is not old_undecodable and self._on_undecodable is not None:
            self._call_observer(self._on_undecodable, key)

    def _notify(self, old_object: ObjectT | None, new_object: ObjectT | None) -> None:
        if self._on_change is None:
            return
        change_pairs = [(old_object, new_object)]
        if old_object is not None and new_object is not None and old_object.metadata.uid != new_object.metadata.uid:
            change_pairs = [(old_object, None), (None, new_object)]
        for change_pair in change_pairs:
            self._call_observer(self._on_change, *change_pair)

    def _call_observer(self, observer: Callable[..., None], *arguments: Any) -> None:
        """Calls an observer, and logs its errors, so that the watch goes on for the other observers."""
        try:
            observer(*arguments)
        except Exception:
            log.exception("a change of %s could not be handled", self._resource)
