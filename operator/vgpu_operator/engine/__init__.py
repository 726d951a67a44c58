"""The serial scheduler: what was seen, what is decided, what is written, and who leads.

The modules in the order in which a change goes through them:

* seen: `copies` and `sinks` (which kinds, and to whom), `intake`, `books`, `consumers`, `typical`
* whose turn it is: `engine` (the loop), `pod_queue`, `immediate`; `starvation` with `wanted`,
  `held_target` and `holds`
* decided: `placing`, `scheduler`, with `pod_claims`, `barred`, `reservations`, `refusals`,
  `moments` and `clock`
* in need of something else: `tending`, with `release`, `expiry`, `unused`, `unusable`, `init_again`
* written: `reservation_writes`, `writes`, `status`, `claim_writer`, `device_view`
* told: `teller`, `recorder`, `hints`, `link_watch`
* who leads: `leadership`, `fence`
"""
