// Package openapi holds the Posthorn API description and checks requests and responses with it.
//
// The description (spec/*.yaml) is the source of truth: routes, schemas, access levels, error answers and conformance
// requirements stand there and nowhere else. [Load] parses it once and compiles its schemas into validators that read
// a body in one pass, without decoding it and without allocating, so that every request and every response can be
// checked in production too. A schema that uses a keyword the compiler does not know is checked by kin-openapi
// instead; [Spec.Uncompiled] lists those. Change the YAML and the checks change with it.
//
// What it promises:
//
//   - Bodies are judged as bytes. The Content-Type of a request is never looked at.
//   - A body is valid UTF-8 and nested at most [MaxDepth] levels; deeper ones are refused as soon as they get there.
//   - Values marked x-raw (payloads) are checked to be JSON and otherwise left alone: never decoded, never copied.
//   - Keys match by exact case, after escapes. Of a key given twice in one object the last value counts, as for a
//     decoder that keeps the last one; the value before it must be JSON, but may break the schema.
//   - An integer is written without fraction and exponent, so that every decoder reads it.
//   - A string that is not raw is well-formed Unicode: lone surrogate escapes are refused rather than replaced.
//   - Array limits hold before anything is materialised: a refused body of 64 MiB costs no memory beside itself.
//
// What it assumes: path parameters come percent-decoded, but for one marked x-rest, which is the rest of the path as it
// was sent; and a body is not changed while it is being checked, nor
// while items that [PushItems] cut out of it are in use.
//
// How it fails: a broken description fails [Load]; a broken request or response is a [*CheckError] that names the
// field by its JSON path and the rule it breaks, as in "items[0].payload is missing".
package openapi
