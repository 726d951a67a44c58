"""Runs Kopf and its handlers while this replica leads, in a thread with its own event loop.

The thread only watches and judges. All writes are made in the leader's loop, by its recorder and
its client, so a write lands while this replica leads, or never. Kopf cannot delay an answer to
kube-scheduler this way, and when it stops, it cancels only the tasks of its own loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from contextlib import suppress

import kopf

from vgpu_client.recorder import Recorder
from vgpu_operator import kopf_frame
from vgpu_operator.certificates.keeper import Keeper
from vgpu_operator.certificates.names import WEBHOOK_CONFIGURATIONS
from vgpu_operator.config import OperatorConfig
from vgpu_operator.controllers import certificates, configuration

logger = logging.getLogger(__name__)

RESTART_S = 30.0


class Controllers:
    """The handlers of one replica, and the work that they start.

    Args:
        config: The operator's arguments.
        recorder: Writes events.
        keeper: Issues certificates. None if they come from files.
    """

    def __init__(self, config: OperatorConfig, recorder: Recorder, keeper: Keeper | None) -> None:
        self._config = config
        self._recorder = recorder
        self._keeper = keeper

    async def run(self) -> None:
        """Handle events until this task is cancelled. The thread has ended when this returns."""
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            if self._keeper is not None:
                tasks.create_task(certificates.rotate(self._keeper, changed))
            await self._run_thread(changed)

    async def _run_thread(self, changed: asyncio.Event) -> None:
        kopfs, stop = asyncio.new_event_loop(), asyncio.Event()
        watching = self._watch(asyncio.get_running_loop(), changed, stop)
        ended: Future[None] = Future()

        def work() -> None:
            try:
                with asyncio.Runner(loop_factory=lambda: kopfs) as runner:
                    runner.run(watching)
            except BaseException as error:  # raised again in the leader's loop
                ended.set_exception(error)
            else:
                ended.set_result(None)

        # A daemon thread, so that the process can exit even if Kopf hangs.
        thread = threading.Thread(target=work, name="controllers", daemon=True)
        thread.start()
        done = asyncio.wrap_future(ended)
        try:
            await asyncio.shield(done)
        finally:
            if not done.done():
                kopfs.call_soon_threadsafe(stop.set)
                await asyncio.wait({done})
            thread.join()  # does not block: the thread has only its last line left

    async def _watch(
        self, leaders: asyncio.AbstractEventLoop, changed: asyncio.Event, stop: asyncio.Event
    ) -> None:
        """Run Kopf until `stop` is set, in the thread.

        Kopf retries forever if a permission is missing, and ends if its login fails. Neither may
        stop
        a leader from deciding, so Kopf is started again instead of ending the process.

        Args:
            leaders: The loop of the other parts.
            changed: An event of that loop, set when a webhook configuration changes.
            stop: An event of the thread's loop.
        """
        while not stop.is_set():
            registry = kopf.OperatorRegistry()
            configuration.register(registry, self._recorder, leaders)
            named = {}
            if self._keeper is not None:
                certificates.register(registry, changed, leaders)
                named = dict.fromkeys(certificates.WATCHED, WEBHOOK_CONFIGURATIONS)
            try:
                await kopf_frame.watch(registry, self._config, stop=stop, named=named)
            except Exception as error:  # of types that Kopf does not export
                logger.error("controllers: starting again in %.0f s: %s", RESTART_S, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(RESTART_S):
                    await stop.wait()
