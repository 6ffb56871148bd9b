"""Creates, restarts and ends the kernels of this agent, and resumes them after a crash.

One operation at a time runs on a kernel, as a task. Every decision is made from the durable record. A report is written
to the outbox before the record changes: a crash in between repeats the report and loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from ai.backend.agent.channel.runs import memory_hint
from ai.backend.agent.images.jobs import KernelImages
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import KernelRecord, Termination, read_allocation, with_shared_texts
from ai.backend.agent.lifecycle.batch import ending_of_program, watch_batch
from ai.backend.agent.lifecycle.context import AgentContext, StepContext, step_context_of
from ai.backend.agent.lifecycle.reporter import StatusReporter, ending_of, exit_code_of
from ai.backend.agent.lifecycle.step_runner import StepRunner
from ai.backend.agent.lifecycle.tombstones import Tombstones
from ai.backend.agent.lifecycle.workload_config import memory_bytes_of
from ai.backend.agent.metrics.statistics import Statistics
from ai.backend.common.errors import (
    BackendError,
    Conflict,
    CreationDeferred,
    ImageMissing,
    InvalidInput,
    NotFound,
    ResourceError,
    Unavailable,
)
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import MAIN_PROGRAM_TYPES, KernelEventReason, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec, RestartKernel
from ai.backend.common.wire.reports import KernelObservation, KernelPresence
from ai.backend.core.lifecycle.kernel_phase import Operation, Phase, PhaseTrigger
from ai.backend.infra.retry import Backoff
from ai.backend.infra.telemetry import bind_log_context
from ai.backend.infra.telemetry.tracing import child_span, current_traceparent
from ai.backend.plugin.accelerator import LifecycleCause
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey, WorkloadState

log = logging.getLogger(__name__)
R = KernelEventReason
_STATUSES_BEFORE_CREATING = (KernelStatus.PREPARING, KernelStatus.PULLING)
_RETRY_FIRST_S, _RETRY_MAX_S = 0.5, 10.0
_RESTART_CONTEXT = StepContext(cause=LifecycleCause.RESTART_IN_PLACE)
_Run = Callable[[Kernel], Coroutine[Any, Any, None]]


class Supervisor:
    """Runs the operations on kernels. Commands return at once; progress is sent as observations."""

    def __init__(self, context: AgentContext, statistics: Statistics) -> None:
        self.context = context
        self._statistics = statistics
        self._runner = StepRunner(context)
        self._reporter = StatusReporter(context)
        self._images = KernelImages(context.runtime, timeout_s=context.settings.kernel_lifecycles.pull_timeout)
        self._slots = asyncio.Semaphore(context.settings.agent.kernel_creation_concurrency)
        self._batch_tasks: set[asyncio.Task[None]] = set()
        self._operations: Mapping[Operation, _Run] = {
            Operation.CREATE: self._create,
            Operation.RESTART: self._restart,
            Operation.TERMINATE: self._terminate,
            Operation.ADOPT: self._adopt,
        }
        self.kernels: dict[str, Kernel] = {}
        """The live kernels by id."""
        self.ended = Tombstones()
        """When ended kernels ended, on the monotonic clock. Their records are read from the disk if needed."""

    def create(self, req: CreateKernels) -> None:
        """Starts to create kernels; accepts all of them or none.

        Raises:
            UnsupportedResource, InvalidAllocation, InsufficientResource, ...: nothing was allocated.
            Conflict: the attempt is older than the one that this agent holds.
            Unavailable: the disk is full. Kernels that were accepted before the failure go on; a repeat skips them.
        """
        if not req.kernels:
            raise InvalidInput("no kernels", data={"kernels": "empty"})
        new_specs = [spec for spec in req.kernels if not self._is_accepted(spec)]
        devices_of_claims = {claim_id: read_allocation(devices) for claim_id, devices in req.kept.items()}
        kernels: list[Kernel] = []
        try:
            for spec in new_specs:
                self.context.inventory.check_supported(
                    ResourceSlot.parse(dict(spec.slots)), self.context.settings.agent.id
                )
                record = KernelRecord(
                    spec=with_shared_texts(replace(spec, secret_environ={})),
                    has_secrets=bool(spec.secret_environ),
                    phase=Phase.CREATING,
                    status=KernelStatus.PREPARING,
                    created_at=self.context.wall_clock(),
                )
                kernel = Kernel(record, self.context.records)
                kernel.registries, kernel.secrets = req.registries, spec.secret_environ
                self._runner.devices.bind(kernel, devices_of_claims)
                kernels.append(kernel)
        except (ResourceError, InvalidInput):
            for kernel in kernels:
                self.context.inventory.free(kernel.id)
            raise
        crash_point("create.accept.before")
        for kernel_index, kernel in enumerate(kernels):
            try:
                kernel.save()
                self._reporter.report_status(kernel, KernelStatus.PREPARING)
            except OSError as e:
                for unaccepted_kernel in kernels[kernel_index:]:
                    self.context.inventory.free(unaccepted_kernel.id)
                raise Unavailable(f"the agent cannot write down what it takes on: {e}") from e
            self.ended.discard(kernel.id)
            self.kernels[kernel.id] = kernel
            self._start_operations(kernel, [Operation.CREATE])
        crash_point("create.accept.after")

    def _find(self, kernel_id: str) -> Kernel | None:
        if (live_kernel := self.kernels.get(kernel_id)) is not None:
            return live_kernel
        record = self.context.records.get(kernel_id) if kernel_id in self.ended else None
        return Kernel(record, self.context.records) if record is not None else None

    def _is_accepted(self, spec: KernelSpec) -> bool:
        """Returns True if this agent has accepted this attempt of the kernel already.

        Raises Conflict for an attempt that is older than the present one, or that is newer while the present one lives.
        """
        existing_kernel = self._find(spec.kernel_id)
        if existing_kernel is None or (existing_kernel.attempt < spec.attempt and not existing_kernel.is_live):
            return False
        if existing_kernel.attempt == spec.attempt:
            return True
        raise _other_attempt(existing_kernel, spec.attempt)

    def destroy(self, req: DestroyKernel) -> None:
        """Starts to end a kernel, or reports the end of a kernel that has ended already."""
        kernel = self._find(req.kernel_id)
        if kernel is None or (not kernel.is_live and kernel.attempt < req.attempt):
            self._reporter.report_unknown_kernel(req)
            return
        if kernel.attempt > req.attempt:
            raise _other_attempt(kernel, req.attempt)
        if not kernel.is_live:
            self._reporter.report_end(kernel, kernel.record.ending)
            return
        attempt = req.attempt if req.attempt != kernel.attempt else None
        self.end(kernel, Termination(reason=req.reason, forced=req.forced, attempt=attempt))

    def restart(self, req: RestartKernel) -> None:
        """Starts to restart a kernel in place. Raises NotFound, Conflict for an older attempt, InvalidTransition."""
        kernel = self.get(req.kernel_id)
        if kernel.attempt == req.attempt:
            return
        if kernel.attempt > req.attempt:
            raise _other_attempt(kernel, req.attempt)
        old_spec = kernel.record.spec
        kernel.secrets, kernel.registries = req.secret_environ, req.registries
        operations = kernel.move(
            PhaseTrigger.RESTART_REQUESTED,
            cause=f"restart as attempt {req.attempt}",
            spec=replace(old_spec, attempt=req.attempt, relocated_from=None),
            status=KernelStatus.RESTARTING,
            restarted_from=old_spec.attempt,
            restarted=True,
            has_secrets=bool(req.secret_environ),
            ready=False,
            batch_since=None,
        )
        self._reporter.report_status(kernel, KernelStatus.RESTARTING, R.RESTARTING)
        crash_point("restart.accept.after")
        self._start_operations(kernel, operations)

    def end(self, kernel: Kernel, ending: Termination) -> None:
        """Starts to end a live kernel, or hurries an end under way.

        Another operation on the kernel is cancelled first.
        """
        if ending.forced:
            kernel.is_hurried.set()
        if not kernel.admits(PhaseTrigger.END_REQUESTED):
            return
        crash_point("destroy.accept.before")
        if kernel.status is not KernelStatus.TERMINATING:
            self._reporter.report_status(kernel, KernelStatus.TERMINATING, ending.reason, message=ending.message)
        operations = kernel.move(
            PhaseTrigger.END_REQUESTED, cause=ending.reason, status=KernelStatus.TERMINATING, ending=ending
        )
        crash_point("destroy.accept.after")
        self._start_operations(kernel, operations)

    def end_for_overuse(self, kernel: Kernel, message: str) -> None:
        """Starts to end a kernel that uses more of a device than its share."""
        self.end(kernel, Termination(reason=R.ANOMALY_DETECTED, message=message))

    def end_exited_kernel(self, key: WorkloadKey, workload_exit: WorkloadExit) -> None:
        """Ends a running kernel whose workload has exited by itself.

        A creation notices the exit through its channel.
        """
        kernel = self.kernels.get(str(key.kernel_id))
        if kernel is None or kernel.key != key:
            return
        kernel.exit = workload_exit
        if kernel.channel is not None:
            kernel.channel.on_workload_end()
        if kernel.phase is Phase.RUNNING and workload_exit.program:
            self.end(
                kernel, ending_of_program(kernel.record.spec, exit_code_of(workload_exit), workload_exit.reason or None)
            )
        elif kernel.phase is Phase.RUNNING:
            reason = R.OUT_OF_MEMORY if workload_exit.oom else R.SELF_TERMINATED
            message = workload_exit.reason or None
            if workload_exit.reason in ("out-of-memory", "memory-limit"):
                message = f"{workload_exit.reason}: {memory_hint(memory_bytes_of(kernel.record.spec))}"
            self.end(kernel, Termination(reason=reason, message=message, exit_code=exit_code_of(workload_exit)))

    def get(self, kernel_id: str) -> Kernel:
        """Returns the live kernel with this id. Raises NotFound if this agent has no such kernel."""
        kernel = self.kernels.get(kernel_id)
        if kernel is None:
            raise NotFound(f"the agent holds no kernel {kernel_id}")
        return kernel

    def live_kernels(self) -> list[Kernel]:
        return list(self.kernels.values())

    def kernel_presence(self) -> list[KernelPresence]:
        """Returns the live kernels, and the ended kernels whose end the manager has not acknowledged. The manager must
        not count these kernels as lost.
        """
        present_kernels: dict[str, Kernel | KernelObservation] = {
            end_observation.kernel_id: end_observation for end_observation in self.context.observer.undelivered_ends()
        }
        present_kernels |= self.kernels
        return [
            KernelPresence(kernel_id=kernel_id, attempt=kernel_or_end.attempt, status=kernel_or_end.status)
            for kernel_id, kernel_or_end in present_kernels.items()
        ]

    def _start_operations(self, kernel: Kernel, operations: Iterable[Operation]) -> None:
        def clear_task(task: asyncio.Task[None]) -> None:
            if kernel.task is task:
                kernel.task = None
            _log_failure(task)

        for operation in operations:
            operation_coroutine = self._run(kernel, self._operations[operation], kernel.task)
            kernel.task = asyncio.create_task(operation_coroutine, name=f"kernel-{kernel.id}")
            kernel.task.add_done_callback(clear_task)

    async def _run(self, kernel: Kernel, operation: _Run, previous: asyncio.Task[None] | None) -> None:
        """Runs a kernel's operation in the trace of the command, or of the session after a restart of the agent."""
        spec = kernel.record.spec
        parent_trace = spec.trace if current_traceparent() is None else None
        name = f"kernel {operation.__name__.strip('_')}"
        attributes = {"backendai.session_id": spec.session_id, "backendai.kernel_id": kernel.id}
        with (
            bind_log_context(session_id=spec.session_id, kernel_id=kernel.id),
            child_span(name, parent=parent_trace, attributes=attributes),
        ):
            await self._finish(kernel, operation, previous)

    async def _finish(self, kernel: Kernel, operation: _Run, previous: asyncio.Task[None] | None) -> None:
        """Runs a kernel's operation after the previous one, with retries on unexpected errors such as a full disk."""
        if previous is not None and not previous.done():
            previous.cancel()
            await asyncio.wait({previous})
        backoff, failure_ending = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S), None
        while True:
            try:
                if failure_ending is not None:
                    kernel.move(PhaseTrigger.FAILED, cause=failure_ending.reason, ending=failure_ending)
                if kernel.phase is Phase.TERMINATING:
                    operation = self._terminate
                await operation(kernel)
                return
            except Exception as e:
                log.exception("kernel %s is %s and cannot go on; trying again", kernel.id, kernel.phase)
                is_restart = kernel.phase is Phase.RESTARTING
                failure_ending = failure_ending or ending_of(e, kernel.exit, restarting=is_restart)
            if not kernel.is_live or (kernel.phase is Phase.RUNNING and operation != self._adopt):
                return
            await backoff.wait()

    async def _create(self, kernel: Kernel) -> None:
        if kernel.status in _STATUSES_BEFORE_CREATING:
            try:
                with child_span("kernel image"):
                    await self._images.ensure_image(
                        kernel, lambda: self._reporter.report_status(kernel, KernelStatus.PULLING)
                    )
            except Exception as e:  # noqa: BLE001  # logged and reported there; a pull has nothing to release
                await self._give_up(kernel, e)
                return
        async with self._slots:
            if kernel.status in _STATUSES_BEFORE_CREATING:
                self._reporter.report_status(kernel, KernelStatus.CREATING)
                kernel.save(status=KernelStatus.CREATING)
            await self._acquire(kernel, step_context_of(kernel.record))

    async def _restart(self, kernel: Kernel) -> None:
        async with self._slots:
            record = kernel.record
            if record.restarted_from is not None:
                if record.carried_until != record.restarted_from:  # else the agent was ended after this was stored
                    carried_counters = await self._statistics.measure_carried_counters(kernel, record.restarted_from)
                    kernel.save(carried=carried_counters, carried_until=record.restarted_from)
                await self._runner.release_all(kernel, _RESTART_CONTEXT)
                kernel.exit = None
                kernel.save(restarted_from=None, workload_id="", deferred_until=None)
            crash_point("restart.released")
            await self._acquire(kernel, _RESTART_CONTEXT)

    async def _acquire(self, kernel: Kernel, step: StepContext) -> None:
        try:
            await self._runner.acquire_all(kernel, step)
        except Exception as e:  # noqa: BLE001  # logged and reported there
            await self._give_up(kernel, e, restarting=step.restarting)
            return
        if kernel.network is not None:
            await self._start_sshd(kernel)
        self._announce(kernel, R.RESTARTING if step.restarting else R.NEW_WORKLOAD_STARTED)

    async def _give_up(self, kernel: Kernel, error: Exception, *, restarting: bool = False) -> None:
        if isinstance(error, ImageMissing) and not restarting and self._images.can_pull_again(kernel):
            error = CreationDeferred(f"{error.message} any more", retry_after=0.0)  # it was removed after the pull
        failure = ending_of(error, kernel.exit, restarting=restarting)
        log_level = logging.INFO if isinstance(error, BackendError) else logging.ERROR
        log.log(log_level, "kernel %s could not be created: %s", kernel.id, error, exc_info=log_level == logging.ERROR)
        kernel.is_hurried.set()
        for operation in kernel.move(PhaseTrigger.FAILED, cause=failure.reason, ending=failure):
            await self._operations[operation](kernel)

    async def _start_sshd(self, kernel: Kernel) -> None:
        """Starts the SSH server by which the session's other kernels log in (spec 03-01)."""
        problem = await self.context.services.start_sshd(kernel)
        if problem is not None:
            log.warning("kernel %s: no SSH server: %s", kernel.id, problem)
            notes = [note for note in (kernel.record.note, f"no SSH between its kernels: {problem}") if note]
            kernel.save(note="; ".join(notes))

    def _announce(self, kernel: Kernel, reason: KernelEventReason) -> None:
        crash_point("create.running.before")
        failed_devices = self.context.inventory.unhealthy_devices(kernel.id)
        self._reporter.report_running(kernel, reason, failed_devices)
        kernel.move(
            PhaseTrigger.STARTED,
            cause=reason,
            status=KernelStatus.RUNNING,
            unhealthy=failed_devices,
            restarted_from=None,
            resumes=0,
        )
        crash_point("create.running.after")
        log.info("kernel %s runs: %s", kernel.id, reason)
        if kernel.channel is not None and kernel.channel.ended:
            self.end_exited_kernel(kernel.key, kernel.exit or WorkloadExit(reason="the workload ended at once"))
            return
        self._watch_batch(kernel)

    def _watch_batch(self, kernel: Kernel) -> None:
        spec = kernel.record.spec
        if spec.session_type in MAIN_PROGRAM_TYPES and spec.startup_command:
            watch_coroutine = watch_batch(kernel, self.end, self.context.wall_clock)
            task = asyncio.create_task(watch_coroutine, name=f"batch-{kernel.id}")
            self._batch_tasks.add(task)
            task.add_done_callback(self._batch_tasks.discard)
            task.add_done_callback(_log_failure)

    async def _terminate(self, kernel: Kernel) -> None:
        if kernel.record.workload_id:
            kernel.last_stat = await self._statistics.final_metrics(kernel)
        kernel.log_tail = await self._reporter.log_tail(kernel) or kernel.log_tail
        ending = kernel.record.ending
        assert ending is not None
        if ending.forced:
            kernel.is_hurried.set()
        record = replace(kernel.record, restarted_from=None)  # no restart follows
        await self._runner.release_all(kernel, step_context_of(record))
        self.context.records.forget_runs(kernel.id)
        crash_point("destroy.terminated.before")
        self._reporter.report_end(kernel, ending)
        self._record_end(kernel, ending)
        crash_point("destroy.terminated.after")

    def _record_end(self, kernel: Kernel, ending: Termination) -> None:
        """Replaces the kernel's record by a tombstone, which has only the fields that late commands need."""
        if ending.exit_code is None:
            ending = replace(ending, exit_code=exit_code_of(kernel.exit))
        kernel.move(
            PhaseTrigger.RELEASED,
            cause=ending.reason,
            base_record=kernel.record.tombstone(),
            status=ending.status,
            ending=ending,
            ended_at=self.context.wall_clock(),
        )
        log.info("kernel %s has ended: %s", kernel.id, ending.reason)
        self.ended.add(kernel.id, asyncio.get_running_loop().time())
        del self.kernels[kernel.id]

    def restore_leftovers(self) -> None:
        """Resumes the failed hook calls of workloads that were removed."""
        self._runner.hook_retrier.restore()

    def resume(self, kernel: Kernel) -> None:
        """Resumes a kernel from its record after a restart of the agent."""
        record = kernel.record
        log.info("kernel %s was %s when the agent ended; going on", kernel.id, record.phase)
        changes: dict[str, Any] = {}
        if record.phase in (Phase.CREATING, Phase.RESTARTING):
            if record.resumes >= self.context.settings.kernel_lifecycles.max_resumes:
                message = f"the agent ended {record.resumes + 1} times while it created this kernel"
                self.end(kernel, Termination(status=KernelStatus.ERROR, reason=R.FAILED_TO_CREATE, message=message))
                return
            changes["resumes"] = record.resumes + 1
        self._start_operations(kernel, kernel.move(PhaseTrigger.AGENT_RESTARTED, cause="start of the agent", **changes))

    def report_again(self, kernel_id: str, attempt: int) -> None:
        """Reports once more that a kernel runs. Does nothing if the kernel does not run, or runs as another attempt."""
        kernel = self.kernels.get(kernel_id)
        if kernel is not None and kernel.attempt == attempt and kernel.phase is Phase.RUNNING:
            log.warning("the manager does not know that kernel %s runs; it is told again", kernel_id)
            self._reporter.report_running(
                kernel, R.RESUMING_AGENT_OPERATION, self.context.inventory.unhealthy_devices(kernel_id)
            )

    async def _adopt(self, kernel: Kernel) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while not await self._connect(kernel):
            await backoff.wait()
        if kernel.phase is not Phase.RUNNING:
            return
        self._reporter.report_adopted(kernel)
        self._runner.hook_retrier.start_repeating(kernel)
        self._watch_batch(kernel)

    async def _connect(self, kernel: Kernel) -> bool:
        """Opens a running workload's channel again, or ends an exited kernel. Returns False to try again later."""
        try:
            await self._runner.channel.acquire(kernel, step_context_of(kernel.record))
            return True
        except Exception as e:
            log.warning("kernel %s cannot be adopted yet: %s", kernel.id, e, exc_info=not isinstance(e, BackendError))
        try:
            view = await self.context.runtime.inspect(kernel.key)
        except BackendError as e:
            log.warning("kernel %s cannot be inspected: %s", kernel.id, e)
            return False
        if view is not None and view.state is WorkloadState.RUNNING:
            return False
        self.end_lost_kernel(kernel, view.exit if view is not None else None)
        return True

    def end_lost_kernel(self, kernel: Kernel, workload_exit: WorkloadExit | None) -> None:
        """Ends a running kernel whose workload does not exist any more."""
        if workload_exit is not None:
            self.end_exited_kernel(kernel.key, workload_exit)
        else:
            message = "the workload was not there any more"
            self.end(kernel, Termination(reason=R.WORKLOAD_NOT_FOUND, message=message))

    async def close(self) -> None:
        """Cancels every operation and closes every channel; the workloads keep running."""
        tasks = [kernel.task for kernel in self.kernels.values() if kernel.task is not None] + list(self._batch_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runner.hook_retrier.close()
        for kernel in self.live_kernels():
            await kernel.disconnect()


def _other_attempt(kernel: Kernel, attempt: int) -> Conflict:
    return Conflict(
        f"the agent holds attempt {kernel.attempt} of kernel {kernel.id} ({kernel.status}), not {attempt}",
        data={"attempt": kernel.attempt, "status": kernel.status.value},
    )


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s failed", task.get_name(), exc_info=error)
