"""The text that event bodies are compressed against.

NEVER EDIT THIS TEXT, not even its spaces: every stored body with marker 1 was written against exactly these bytes and
cannot be read with any others. A better dictionary is a new constant with a new marker in `frames`; the old one stays.

It is a handful of bodies as the store writes them, the most common last: zstd prefers matches near the end.
"""

from __future__ import annotations

from typing import Final

BODY_DICTIONARY_1: Final = b"".join(
    (
        # operator_action, needs_operator, recovery
        b'{"data":{"action":"mark_succeeded","reason":"found in the dashboard","role":"operator"},"set":{"decisions'
        b'":{"":{"action":"retry","not_before":1790000000000000,"status":"waiting"}},"runs":{"owner":"","status":"p'
        b'aused","pause_requested":1,"cancel_requested":1,"resume_to":"running","why":null,"why_detail":null,"why_s'
        b'ince":null,"why_step":null}}}',
        b'{"data":{"acknowledged":false,"attempted":true,"proven":false,"retry_safe":false,"why":"compensation_fail'
        b'ed"},"set":{"runs":{"crashes":1,"status":"compensating","why":"duplicate_suspected"}}}',
        b'{"data":{"detail":"budget_spent"},"set":{"runs":{"open_operations":1,"status":"needs_operator","unknown_o'
        b'perations":1,"why":"unknown","why_detail":"diverged: drift: review","why_since":1790000000000000,"why_ste'
        b'p":"6","worker":null}}}',
        # approval_asked, approval_given, compensation
        b'{"data":{"digest":"","expires_at":1790000000000000,"role":"approver","rule":"over 100.00"},"set":{"approv'
        b'als":{"":{"asked_at":1790000000000000,"digest":"","expires_at":1790000000000000,"role":"approver","rule":'
        b'"","status":"asked"}},"operations":{"":{"status":"awaiting_approval"}},"runs":{"status":"waiting","wake_a'
        b't":1790000000000000,"waits_for":"approval"}}}',
        b'{"data":{"by":"","reason":""},"set":{"approvals":{"":{"by":"","decided_at":1790000000000000,"status":"giv'
        b'en"}},"operations":{"":{"status":"compensated"}},"runs":{"status":"compensated"}}}',
        # run_started, lease, run_finished
        b'{"data":{"input":{"order":"order-123"},"snapshot":""},"set":{"runs":{"agent":"close_order","agent_version'
        b'":"1","created_at":1790000000000000,"fence":0,"input_digest":"","last_snapshot":0,"parent":null,"plan":nu'
        b'll,"position":0,"snapshots":1,"status":"running","steps":0,"tags":[],"updated_at":1790000000000000}}}',
        b'{"data":{"fence":2,"worker":"w-host-1234"},"set":{"runs":{"fence":2,"worker":"w-host-1234"}}}',
        b'{"data":{"error":"","error_class":"TimeoutError","result":null},"set":{"runs":{"finished_at":179000000000'
        b'0000,"status":"failed","worker":null}}}',
        # decision, observation, step
        b'{"data":{"choice":"","model":"","options":[],"rationale":""},"set":{"runs":{"last_step":"5","position":5,'
        b'"steps":5},"steps":{"5":{"after":41,"ended_at":1790000000000000,"kind":"decision","name":"","started_at":'
        b'1790000000000000,"status":"succeeded"}}}}',
        b'{"data":{"value":{"amount":"","currency":"EUR","customer":"","email":"","id":"","items":[{"name":"","pric'
        b'e":{"$":"decimal","v":"42.00"},"quantity":1}],"status":"open","total":4200}},"set":{"runs":{"position":4}'
        b',"steps":{"4":{"after":40,"before":39,"ended_at":1790000000000000,"kind":"observation","name":"read_order'
        b'","started_at":1790000000000000,"status":"succeeded"}}}}',
        # verification, tool_result, outcome, intent
        b'{"data":{"evidence":"absent","found":null,"n":1},"set":{}}',
        b'{"data":{"evidence":"happened","found":{"id":"inv_1"},"n":1},"set":{}}',
        b'{"data":{"answer":"ambiguous","error":"timeout","n":1,"output":null},"set":{"attempts":{"/1":{"answer":"n'
        b'one"}}}}',
        b'{"data":{"answer":"acknowledged","n":1,"output":{"id":"inv_1","status":"open"}},"set":{"attempts":{"order'
        b'-123:6:create_invoice:6f1cab12/1":{"answer":"acknowledged","ended_at":1790000000000000,"status":"ended"}}'
        b"}}",
        b'{"data":{"result":{"id":"inv_1"},"snapshot":"q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA"},"set":{"operat'
        b'ions":{"order-123:6:create_invoice:6f1cab12":{"ended_at":1790000000000000,"outcome_seq":15,"status":"succ'
        b'eeded"}},"runs":{"last_snapshot":42,"snapshots":42,"status":"running","updated_at":1790000000000000},"ste'
        b'ps":{"6":{"after":42,"ended_at":1790000000000000,"status":"succeeded"}}}}',
        b'{"data":{"args":{"cents":4200,"order":"order-123"},"args_hash":"6f1cab12d09e44b7a3f05c8812b6e7c94d20f1a86'
        b'b3e975510c7d4f2e8a9b603","evidence":"invoice exists","preconditions":[],"snapshot":"q83vEjRWeJCrze8SNFZ4k'
        b'KvN7xI0VniQq83vEjRWeJA"},"set":{"attempts":{"order-123:6:create_invoice:6f1cab12/1":{"deadline":179000000'
        b'0000000,"n":1,"op_id":"order-123:6:create_invoice:6f1cab12","started_at":1790000000000000,"status":"runni'
        b'ng","worker":"w-host-1234"}},"operations":{"order-123:6:create_invoice:6f1cab12":{"agent":"close_order","'
        b'attempts":1,"can_undo":true,"can_verify":true,"description":"invoice order order-123","effect":"write","i'
        b'ntent_seq":12,"key":"order-123:6:create_invoice:6f1cab12","key_until":null,"not_before":null,"service":"b'
        b'illing","stake":"$42.00","stake_value":42.0,"started_at":1790000000000000,"status":"pending","step":"6","'
        b'tool":"create_invoice","tool_version":"1"}},"runs":{"position":6,"status":"running"},"steps":{"6":{"befor'
        b'e":41,"kind":"call","name":"create_invoice","op_id":"order-123:6:create_invoice:6f1cab12","started_at":17'
        b'90000000000000,"status":"running"}}}}',
    )
)
