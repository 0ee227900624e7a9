"""The state machine: every legal transition of runs, operations, approvals and what surrounds them.

Read `runs`, `operations`, `people`, `store_wide` and `roles`, in this order. Each class is one transition: its
docstring says what it does, `sources` and `targets` from where to where, `also` what becomes of others, `needs` what
else must hold, `by` who may, and `needs_role` what a person has to be. docs/state-machine.md is made from them.
"""

from __future__ import annotations

from walkback_store.machine import operations, people, roles, runs, store_wide
from walkback_store.machine.base import Transition

TRANSITIONS: tuple[type[Transition], ...] = (
    runs.StartRun,
    runs.ClaimRun,
    runs.ReleaseRun,
    runs.DeclarePlan,
    runs.RecordStep,
    runs.TakeSnapshot,
    runs.ParkRun,
    runs.WakeRun,
    runs.SendSignal,
    runs.ConsumeSignal,
    runs.NeedOperator,
    runs.StopAtBoundary,
    runs.FinishRun,
    runs.FailRun,
    operations.BeginCompensation,
    operations.EndCompensation,
    people.RequestPause,
    people.RequestCancel,
    people.ResumeRun,
    people.CarryOutResume,
    people.DecideCompensate,
    people.AddNote,
    operations.DenyOperation,
    operations.AskApproval,
    operations.Intend,
    operations.StartAttempt,
    operations.EndAttempt,
    operations.RecordVerification,
    operations.RecordRecovery,
    operations.Settle,
    operations.Refer,
    operations.AppendLateEvidence,
    people.DismissDuplicate,
    people.RequestVerify,
    people.RecordHappened,
    people.RecordAbsent,
    people.DecideRetry,
    people.RetryMember,
    operations.CarryOutRetry,
    people.Approve,
    people.Refuse,
    people.ExpireApproval,
    people.TakeBack,
    store_wide.Freeze,
    store_wide.Unfreeze,
    store_wide.ServiceFailed,
    store_wide.ServiceAnswered,
    store_wide.ProbeService,
    store_wide.TakeToken,
    store_wide.ClaimIdentity,
    store_wide.RegisterWorker,
    store_wide.StopWorker,
    store_wide.LoseWorker,
    store_wide.OpenBatch,
    store_wide.ReleaseMember,
    store_wide.StopBatch,
    roles.GrantRole,
    store_wide.AdoptStore,
    store_wide.NotePrune,
)
"""All of them, in reading order."""
