// Shows /api/openapi.json as a page: operations by tag, their bodies field by field. Texts are set as text, never as HTML.
"use strict";

const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

// Deeper than this a type is only named: some types contain themselves.
const DEPTH_MAX = 6;

const resolve = (api, schema) => {
  const name = schema && schema.$ref ? schema.$ref.split("/").pop() : null;
  return name ? { name, ...api.components.schemas[name] } : schema || {};
};

const typeName = (api, schema) => {
  const type = resolve(api, schema);
  if (type.name) return type.name;
  for (const key of ["oneOf", "anyOf", "allOf"]) {
    if (type[key]) return type[key].map((one) => typeName(api, one)).join(key === "allOf" ? " and " : " or ");
  }
  if (type.enum) return type.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (type.items) return "list of " + typeName(api, type.items);
  return [].concat(type.type || "any value").join(" or ");
};

// The object types within a schema, whose fields are shown below it.
const objects = (api, schema) => {
  const type = resolve(api, schema);
  if (type.properties) return [type];
  const inner = [...(type.oneOf || []), ...(type.anyOf || []), ...(type.allOf || []), ...(type.items ? [type.items] : [])];
  return inner.flatMap((one) => objects(api, one));
};

const fields = (api, schema, depth) => {
  const found = depth > DEPTH_MAX ? [] : objects(api, schema);
  if (found.length === 0) return null;
  const list = make("ul", { class: "fields" });
  for (const type of found) {
    for (const [name, field] of Object.entries(type.properties)) {
      const required = (type.required || []).includes(name) ? "" : ", optional";
      const about = field.description || resolve(api, field).description || "";
      const item = make("li", {}, make("code", {}, name), " ",
        make("span", { class: "type" }, typeName(api, field) + required), about ? " — " + about : "");
      const inner = fields(api, field, depth + 1);
      if (inner) item.append(make("details", {}, make("summary", {}, "fields"), inner));
      list.append(item);
    }
  }
  return list;
};

const body = (api, content) => {
  const schema = content && content["application/json"] && content["application/json"].schema;
  if (!schema) return null;
  return make("div", {}, make("span", { class: "type" }, typeName(api, schema)), fields(api, schema, 0));
};

const operation = (api, path, method, described) => {
  const box = make("details", {},
    make("summary", {}, make("span", { class: "method" }, method.toUpperCase()), make("code", {}, path), " ",
      described.summary || ""),
    make("p", {}, described.description || ""));
  for (const parameter of described.parameters || []) {
    box.append(make("p", {}, make("code", {}, parameter.name), ` (${parameter.in}) `, parameter.description || ""));
  }
  if (described.requestBody) box.append(make("h4", {}, "Body"), body(api, described.requestBody.content) || "");
  const rows = Object.entries(described.responses || {}).map(([status, response]) =>
    make("tr", {}, make("td", {}, status), make("td", {}, response.description || "", body(api, response.content))));
  box.append(make("h4", {}, "Answers"), make("table", {}, make("tbody", {}, ...rows)));
  return box;
};

const show = (api) => {
  document.getElementById("about").textContent = `Version ${api.info.version}. ${api.info.description || ""}`;
  const main = document.getElementById("operations");
  for (const tag of api.tags || []) {
    main.append(make("h2", {}, tag.description || tag.name));
    for (const [path, item] of Object.entries(api.paths)) {
      for (const [method, described] of Object.entries(item)) {
        if ((described.tags || []).includes(tag.name)) main.append(operation(api, path, method, described));
      }
    }
  }
};

fetch("/api/openapi.json")
  .then((response) => (response.ok ? response.json() : Promise.reject(new Error(`status ${response.status}`))))
  .then(show)
  .catch((error) => {
    document.getElementById("about").textContent = `The API document could not be read: ${error.message}`;
  });
