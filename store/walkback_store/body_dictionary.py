"""The text that event bodies are compressed against.

NEVER EDIT THIS TEXT, not even its spaces, once a store was written with it: every stored body with marker 1 was written
against exactly these bytes and cannot be read with any others. A better dictionary is a new constant with a new marker
in `frames`; the old one stays.

It is the log of one run, as the store writes it, without its hashes; the most common bodies are last, because zstd
prefers matches near the end.
"""

from __future__ import annotations

from typing import Final

# fmt: off
BODY_DICTIONARY_1: Final = b"".join(
    (
        # run_finished
        b'{"data":{"output":{"id":""}},"set":{"runs":{"":{"crashes":0,"finished_at":1790000040000000,"status":"suc'
        b'ceeded","worker":null}}}}',
        # run_started
        b'{"data":{"input":{"order":"order-123"},"snapshot":"0:44136fa355b3678a1146ad16f7e8649e"},"set":{"runs":{"'
        b'":{"agent":"close_order","agent_version":"1","created_at":1790000000000000,"input_digest":"4d01188c42f0c'
        b'55d30310cc4749ad840","last_snapshot":0,"run_id":"order-123","snapshots":1,"status":"running","tags":"[\\"'
        b'production\\"]"}}}}',
        # lease
        b'{"data":{"fence":,"taken_from":null,"worker":"w-host-1234"},"set":{"runs":{"":{"fence":,"worker":"w-host'
        b'-1234"}}}}',
        # plan
        b'{"data":{"steps":["read the order","decide","invoice","receipt"]},"set":{"runs":{"":{"plan":"[\\"read the'
        b' order\\",\\"decide\\",\\"invoice\\",\\"receipt\\"]"}}}}',
        # observation
        b'{"data":{"source":"","trust":"untrusted","value":{"amount":4200,"currency":"EUR","customer":"","email":"'
        b'","id":"","items":[],"status":"open"}},"set":{"runs":{"":{"last_step":"1","position":1,"steps":1}},"step'
        b's":{"1":{"after":0,"before":0,"ended_at":1790000000000000,"first_seq":4,"kind":"observe","name":"order",'
        b'"started_at":1790000000000000,"status":"succeeded"}}}}',
        # decision
        b'{"data":{"choice":"","model":"","options":[],"rationale":"","snapshot":"1:015abd7f5cc57a2dd94b7590f04ad8'
        b'08"},"set":{"runs":{"":{"last_snapshot":1,"last_step":"2","position":2,"snapshots":2,"steps":2}},"steps"'
        b':{"1":{"after":1},"2":{"after":1,"before":1,"ended_at":1790000000000000,"first_seq":5,"kind":"decide","n'
        b'ame":"how to close","started_at":1790000000000000,"status":"succeeded"}}}}',
        # intent
        b'{"data":{"args":{"cents":4200,"order":"order-123"},"expects":{"exists":true},"preconditions":[]},"set":{'
        b'"attempts":{"3/1":{"deadline":1790000030000000,"started_at":1790000000000000,"status":"running","worker"'
        b':"w-host-1234"}},"operations":{"3":{"args_hash":"","attempting":1,"attempts":1,"can_verify":1,"compensat'
        b'e":"void_invoice","description":"invoice order order-123","effect":"read","intent_seq":6,"key":"order-12'
        b'3:3:create_invoice:","service":"billing","stake":"$42.00","stake_value":42.0,"started_at":17900000000000'
        b'00,"status":"pending","tool":"read_order","tool_version":"1"}},"runs":{"":{"last_step":"3","pending_oper'
        b'ations":1,"position":3,"steps":3}},"steps":{"3":{"before":1,"first_seq":6,"kind":"call","name":"read_ord'
        b'er","started_at":1790000000000000,"status":"running"}}}}',
        # tool_result
        b'{"data":{"answer":"acknowledged","n":1,"output":{"id":"","status":"open"}},"set":{"attempts":{"3/1":{"an'
        b'swer":"acknowledged","ended_at":1790000000000000,"status":"ended"}},"operations":{"3":{"attempting":0}}}'
        b'}',
        # outcome
        b'{"data":{"outcome":"succeeded","result":{"id":""},"snapshot":"2:eb8ed3ccb5023093b56f490a46501e88"},"set"'
        b':{"operations":{"3":{"ended_at":1790000000000000,"outcome_seq":8,"status":"succeeded"}},"runs":{"":{"las'
        b't_snapshot":2,"pending_operations":0,"snapshots":3}},"steps":{"3":{"after":2,"ended_at":1790000000000000'
        b',"status":"succeeded"}}}}',
        # approval_asked
        b'{"data":{"args":{"cents":4200,"order":"order-123"},"digest":"","expects":{"exists":true},"preconditions"'
        b':[],"rule":"over_limit","shown":{"description":"","stake":""}},"set":{"approvals":{"4/1":{"asked_at":179'
        b'0000000000000,"digest":"","expires_at":1790003600000000,"role":"approver","rule":"over_limit","status":"'
        b'asked"}},"operations":{"4":{"args_hash":"","can_verify":1,"compensate":"void_invoice","description":"inv'
        b'oice order order-123","effect":"write","key":"order-123:4:create_invoice:","service":"billing","stake":"'
        b'$42.00","stake_value":42.0,"started_at":1790000000000000,"status":"awaiting_approval","tool":"create_inv'
        b'oice","tool_version":"1"}},"runs":{"":{"awaiting_operations":1,"last_step":"4","position":4,"steps":4}},'
        b'"steps":{"4":{"before":2,"first_seq":9,"kind":"call","name":"create_invoice","started_at":17900000000000'
        b'00,"status":"running"}}}}',
        # wait
        b'{"data":{"waits_for":"approval:4","wake_at":1790003600000000},"set":{"runs":{"":{"crashes":0,"status":"w'
        b'aiting","waits_for":"approval:4","wake_at":1790003600000000,"worker":null}}}}',
        # approval_given
        b'{"data":{"digest":"","n":1,"reason":"looks right"},"set":{"approvals":{"4/1":{"decided_at":1790000000000'
        b'000,"decided_by":"operator:ann","not_before":1790000010000000,"reason":"looks right","status":"given"}},'
        b'"decisions":{"11":{"action":"approve","by":"operator:ann","decided_at":1790000000000000,"not_before":179'
        b'0000010000000,"status":"waiting","step":"4"}},"runs":{"":{"wake_at":1790000010000000}}}}',
        # lease
        b'{"data":{"fence":,"taken_from":null,"worker":"w-host-1234"},"set":{"runs":{"":{"fence":,"resume_to":null'
        b',"status":"running","waits_for":null,"wake_at":null,"worker":"w-host-1234"}}}}',
        # intent
        b'{"data":{"args":{"cents":4200,"order":"order-123"},"expects":{"exists":true},"preconditions":[]},"set":{'
        b'"approvals":{"4/1":{"status":"consumed"}},"attempts":{"4/1":{"deadline":1790000030000000,"started_at":17'
        b'90000020000000,"status":"running","worker":"w-host-1234"}},"decisions":{"11":{"ended_at":179000002000000'
        b'0,"ended_by":"worker:w-host-1234","status":"carried_out"}},"operations":{"4":{"args_hash":"","attempting'
        b'":1,"attempts":1,"can_verify":1,"compensate":"void_invoice","description":"invoice order order-123","eff'
        b'ect":"write","intent_seq":13,"key":"order-123:4:create_invoice:","service":"billing","stake":"$42.00","s'
        b'take_value":42.0,"status":"pending","tool":"create_invoice","tool_version":"1"}},"runs":{"":{"awaiting_o'
        b'perations":0,"pending_operations":1}}}}',
        # tool_result
        b'{"data":{"answer":"ambiguous","error":"timed out after 30 s","error_class":"TimeoutError","n":1,"output"'
        b':null},"set":{"attempts":{"4/1":{"answer":"ambiguous","ended_at":1790000020000000,"error":"timed out aft'
        b'er 30 s","error_class":"TimeoutError","status":"ended"}},"operations":{"4":{"attempting":0}}}}',
        # verification
        b'{"data":{"evidence":"cannot_tell"},"set":{"operations":{"4":{"evidence":"cannot_tell","evidence_at":1790'
        b'000020000000}}}}',
        # outcome
        b'{"data":{"outcome":"unknown"},"set":{"operations":{"4":{"ended_at":1790000020000000,"error":"timed out a'
        b'fter 30 s","error_class":"TimeoutError","outcome_seq":16,"status":"unknown"}},"runs":{"":{"pending_opera'
        b'tions":0,"unknown_operations":1}},"steps":{"4":{"after":2,"ended_at":1790000020000000,"status":"unknown"'
        b'}}}}',
        # recovery
        b'{"data":{"acknowledged":"no","attempted":"yes","proven":"no","retry_safe":"no","verdict":"unknown"},"set'
        b'":{}}',
        # needs_operator
        b'{"data":{"detail":"no answer","why":"unknown"},"set":{"runs":{"":{"crashes":0,"resume_to":"running","sta'
        b'tus":"needs_operator","why":"unknown","why_detail":"no answer","why_since":1790000020000000,"why_step":"'
        b'4","worker":null}}}}',
        # operator_action
        b'{"data":{"action":"retry","reason":"not in the dashboard"},"set":{"decisions":{"19":{"action":"retry","b'
        b'y":"operator:ann","decided_at":1790000020000000,"not_before":1790000030000000,"status":"waiting","step":'
        b'"4"}},"runs":{"":{"decision":19,"status":"waiting","waits_for":"decision:needs_operator","wake_at":17900'
        b'00030000000}}}}',
        # recovery
        b'{"data":{"decision":19,"verdict":"retry"},"set":{"decisions":{"19":{"ended_at":1790000040000000,"ended_b'
        b'y":"worker:w-host-1234","status":"carried_out"}},"operations":{"4":{"ended_at":null,"status":"pending"}}'
        b',"runs":{"":{"decision":null,"pending_operations":1,"resume_to":null,"unknown_operations":0,"why":null,"'
        b'why_detail":null,"why_since":null,"why_step":null}}}}',
        # attempt
        b'{"data":{"n":2},"set":{"attempts":{"4/2":{"deadline":1790000030000000,"started_at":1790000040000000,"sta'
        b'tus":"running","worker":"w-host-1234"}},"operations":{"4":{"attempting":1,"attempts":2}}}}',
        # tool_result
        b'{"data":{"answer":"rejected","error":"503","error_class":"HTTPError","n":2,"output":null},"set":{"attemp'
        b'ts":{"4/2":{"answer":"rejected","ended_at":1790000040000000,"error":"503","error_class":"HTTPError","sta'
        b'tus":"ended"}},"operations":{"4":{"attempting":0}}}}',
        # verification
        b'{"data":{"evidence":"absent"},"set":{"operations":{"4":{"evidence":"absent","evidence_at":17900000400000'
        b'00}}}}',
        # outcome
        b'{"data":{"outcome":"failed"},"set":{"operations":{"4":{"ended_at":1790000040000000,"error":"503","error_'
        b'class":"HTTPError","outcome_seq":25,"status":"failed"}},"runs":{"":{"pending_operations":0}},"steps":{"4'
        b'":{"after":2,"ended_at":1790000040000000,"status":"failed"}}}}',
        # signal
        b'{"data":{"id":"s-1","name":"paid","payload":{}},"set":{"signals":{"s-1":{"name":"paid","received_at":179'
        b'0000040000000,"seq":26}}}}',
        b'{"data":{"consumed":"s-1","signal_seq":26},"set":{"runs":{"":{"last_step":"5","position":5,"steps":5}},"'
        b'signals":{"s-1":{"consumed_by":"5"}},"steps":{"5":{"after":2,"before":2,"ended_at":1790000040000000,"fir'
        b'st_seq":27,"kind":"wait","name":"paid","started_at":1790000040000000,"status":"succeeded"}}}}',
        # intent
        b'{"data":{"args":{"body":"","subject":"","to":""}},"set":{"attempts":{"6/1":{"deadline":1790000030000000,'
        b'"started_at":1790000040000000,"status":"running","worker":"w-host-1234"}},"operations":{"6":{"args_hash"'
        b':"","attempting":1,"attempts":1,"can_verify":1,"effect":"write","intent_seq":28,"key":"order-123:6:send_'
        b'mail:","started_at":1790000040000000,"status":"pending","tool":"send_mail","tool_version":"1"}},"runs":{'
        b'"":{"last_step":"6","pending_operations":1,"position":6,"steps":6}},"steps":{"6":{"before":2,"first_seq"'
        b':28,"kind":"call","name":"send_mail","started_at":1790000040000000,"status":"running"}}}}',
        # tool_result
        b'{"data":{"answer":"acknowledged","n":1,"output":{"id":"","ok":true}},"set":{"attempts":{"6/1":{"answer":'
        b'"acknowledged","ended_at":1790000040000000,"status":"ended"}},"operations":{"6":{"attempting":0}}}}',
        # verification
        b'{"data":{"evidence":"happened"},"set":{"operations":{"6":{"evidence":"happened","evidence_at":1790000040'
        b'000000}}}}',
        # outcome
        b'{"data":{"outcome":"succeeded","result":{"id":""},"snapshot":"3:1cb1f090ab6108258757d7c63c62205e"},"set"'
        b':{"operations":{"6":{"ended_at":1790000040000000,"outcome_seq":31,"status":"succeeded"}},"runs":{"":{"la'
        b'st_snapshot":3,"pending_operations":0,"snapshots":4}},"steps":{"6":{"after":3,"ended_at":179000004000000'
        b'0,"status":"succeeded"}}}}',
    )
)
# fmt: on
