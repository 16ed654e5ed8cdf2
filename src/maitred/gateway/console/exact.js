// JSON whose whole numbers stay exact: numbers of tasks and arguments may have 64 bits, and a plain parser rounds beyond 53.

const WHOLE = /^-?\d+$/;

export function parse(text) {
  return JSON.parse(text, (_key, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && WHOLE.test(context?.source ?? "") ? BigInt(context.source) : value,
  );
}

export function stringify(value, indent) {
  return JSON.stringify(value, (_key, one) => (typeof one === "bigint" ? (JSON.rawJSON ? JSON.rawJSON(String(one)) : Number(one)) : one), indent);
}
