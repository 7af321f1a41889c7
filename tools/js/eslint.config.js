// What ESLint looks for; unknown names are TypeScript's to find.
import js from "@eslint/js";

export default [
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2022, sourceType: "module" },
    rules: {
      "no-undef": "off",
      "eqeqeq": "error",
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      "max-len": ["error", { code: 170 }],
      "max-lines-per-function": ["error", { max: 120 }],
    },
  },
];
