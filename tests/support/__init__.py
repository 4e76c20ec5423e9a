"""What several folders of tests share: one virtual world, stores that misbehave on purpose, and real servers.

- `clock`: processes on a clock that moves by hand. `stores`: stores that answer as a test says. `costs`: requests.
- `queue`, `sync`, `index`, `publish`, `catalog`: one room each, ready for a test. `values`: values of every column.
- `servers`: real servers on free ports. `roles`: keys that such a server holds to the rights of a role.
- `seeds`: how many seeds of each scenario are run. `docs`: the code blocks of the pages.
"""
