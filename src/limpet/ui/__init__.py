"""The dashboard: one page per noun of a fleet, in a browser.

Read `facts` (what the library reads, as JSON), `server` (the routes and the live feed), then `static`: the page itself,
HTML, one style sheet and a few ES modules, as they are served. The page shows everything that it is sent as text.

It may import the app, the service (its server and its tokens), the rooms of data and the kernel. Only the command line
and the demo stand above it.
"""

__all__: list[str] = []
