/** A value of JSON. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json | undefined };

export type TypeName = 'string' | 'integer' | 'number' | 'boolean' | 'array' | 'object' | 'null';

/** A JSON Schema. A property without a default is required. */
export interface Schema {
  readonly type?: TypeName | readonly TypeName[];
  /** For people, and for the model where it is a tool's. */
  readonly description?: string;
  /** Filled in where the property is missing. */
  readonly default?: Json;
  readonly enum?: readonly Json[];
  readonly const?: Json;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly pattern?: string;
  readonly items?: Schema;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly properties?: Properties;
  readonly additionalProperties?: boolean | Schema;
}

/** The properties of an object, by name. */
export type Properties = { readonly [name: string]: Schema };

/** The type of values of a schema. */
export type ValueOf<S> = S extends { readonly enum: readonly (infer E)[] }
  ? E
  : S extends { readonly const: infer C }
    ? C
    : S extends { readonly type: infer T }
      ? ValueOfType<T extends readonly (infer U)[] ? U : T, S>
      : any;

type ValueOfType<T, S> = T extends 'string'
  ? string
  : T extends 'integer' | 'number'
    ? number
    : T extends 'boolean'
      ? boolean
      : T extends 'null'
        ? null
        : T extends 'array'
          ? S extends { readonly items: infer I }
            ? ValueOf<I>[]
            : any[]
          : T extends 'object'
            ? S extends { readonly properties: infer P }
              ? ValuesOf<P>
              : S extends { readonly additionalProperties: infer A extends Schema }
                ? { [name: string]: ValueOf<A> }
                : { [name: string]: any }
            : never;

/** The type of an object with these properties. */
export type ValuesOf<P> = { -readonly [K in keyof P]: ValueOf<P[K]> };
