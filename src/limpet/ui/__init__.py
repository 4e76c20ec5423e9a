"""The dashboard: one page per noun of a fleet, in a browser.

`facts` turns what the library reads into JSON, `server` has the routes and the live feed, `static` the page itself:
HTML, one style sheet and a few ES modules, as they are served. The page shows everything that it is sent as text.
"""

__all__: list[str] = []
