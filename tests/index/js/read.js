// Prints the records of a data package as JSON. The reader takes one file a resource, so it is given each shard alone.
const { Package } = require("datapackage");
const fs = require("fs");
const path = require("path");

async function read(file) {
  const described = JSON.parse(fs.readFileSync(file));
  const resource = described.resources[0];
  const records = [];
  for (const shard of resource.path.filter((each) => fs.statSync(path.join(path.dirname(file), each)).size)) {
    const alone = { ...described, resources: [{ ...resource, path: shard }] };
    const opened = await Package.load(alone, { basePath: path.dirname(file) });
    if (!opened.valid) throw opened.errors;
    records.push(...(await opened.resources[0].read({ keyed: true })));
  }
  return records;
}

read(process.argv[2]).then(
  (records) => console.log(JSON.stringify(records)),
  (error) => {
    console.error(String(error), (error.errors || []).map(String));
    process.exit(1);
  },
);
